#include "comm/fallback.hpp"

namespace atoll_v1::atoll {

FallbackContext::FallbackContext(BackendGroup& group_, const Operation& called,
                                 const std::shared_ptr<Work::State>& work, Stream& on)
    : group(group_),
      shape(group.shape()),
      operation(called),
      state(work),
      stream(on),
      called_(called.kind) {}

FallbackContext FallbackContext::with(const Operation& other) const {
  FallbackContext context(group, other, state, stream);
  context.called_ = called_;
  return context;
}

void FallbackContext::submit(std::vector<Operation> parts) const {
  submit_to(group, std::move(parts));
}

void FallbackContext::submit_to(BackendGroup& other, std::vector<Operation> parts) const {
  for (Operation& part : parts) part.part_of = called_;
  other.submit(std::move(parts), state, stream);
}

void FallbackContext::submit_messages(std::vector<Operation> messages) const {
  std::erase_if(messages, [](const Operation& message) { return message.count == 0; });
  if (!messages.empty()) submit(std::move(messages));
}

View FallbackContext::scratch(std::uint64_t count, DType dtype) const {
  return group.fallback_scratch().take(count, dtype);
}

void FallbackContext::copy_unless_there(View dst, ConstView src) const {
  if (dst.data != src.data && src.count > 0) stream.copy(dst.data, src.data, src.bytes());
}

void FallbackContext::enqueue_check(std::function<std::string()> find) const {
  stream.enqueue([self = group.shared_from_this(), work = state, find = std::move(find)] {
    const std::string finding = find();
    if (!finding.empty()) self->disagree(finding, *work);
  });
}

}  // namespace atoll_v1::atoll
