#include "comm/fallback.hpp"

#include "comm/backend_communicator.hpp"

namespace atoll_v1::atoll {

FallbackContext::FallbackContext(BackendCommunicator& group, const Operation& called,
                                 const std::shared_ptr<Work::State>& work, Stream& on,
                                 BackendCommunicator* intra)
    : shape(group.shape()),
      operation(called),
      state(work),
      stream(on),
      group_(group),
      intra_(intra),
      called_(called.kind) {}

FallbackContext FallbackContext::with(const Operation& other) const {
  FallbackContext context(group_, other, state, stream, intra_);
  context.called_ = called_;
  return context;
}

DeviceOps& FallbackContext::ops() const { return group_.device().ops(); }
std::span<const int> FallbackContext::world_ranks() const { return group_.axis().ranks; }
std::uint64_t FallbackContext::sequence() const { return group_.sequence(); }
bool FallbackContext::backend_performs(std::int32_t kind, DType dtype, ReduceOp op) const {
  return group_.supports(kind, dtype, op);
}

void FallbackContext::submit(std::vector<Operation> parts) const {
  submit_to(group_, std::move(parts));
}

void FallbackContext::submit_to(BackendCommunicator& other, std::vector<Operation> parts) const {
  for (Operation& part : parts) {
    part.part_of = called_;
    part.timeout = operation.timeout;
  }
  other.submit(std::move(parts), state, stream);
}

bool FallbackContext::all_to_all_intra(ConstView src, View dst, std::uint64_t count) const {
  if (intra_ == nullptr) return false;
  submit_to(*intra_, {{ATOLL_ALL_TO_ALL, src, dst, count, src.dtype}});
  return true;
}

void FallbackContext::submit_messages(std::vector<Operation> messages) const {
  std::erase_if(messages, [](const Operation& message) { return message.count == 0; });
  if (!messages.empty()) submit(std::move(messages));
}

View FallbackContext::scratch(std::uint64_t count, DType dtype) const {
  return group_.fallback_scratch().take(count, dtype);
}

void FallbackContext::copy_unless_there(View dst, ConstView src) const {
  if (dst.data != src.data && src.count > 0) stream.copy(dst.data, src.data, src.bytes());
}

void FallbackContext::enqueue_check(std::function<std::string()> find) const {
  stream.enqueue([self = group_.shared_from_this(), work = state, find = std::move(find)] {
    const std::string finding = find();
    if (!finding.empty()) self->disagree(finding, *work);
  });
}

}  // namespace atoll_v1::atoll
