// Collectives that only move data, as one group of sends and receives: every pair of ranks that has
// something for each other exchanges it directly, all at once. Bytes: those of the blocks that are
// not where they belong, once.
#include "comm/composed.hpp"

namespace atoll_v1::atoll {
Request send(ConstView data, std::uint64_t peer) {
  return {ATOLL_SEND, data, {}, data.count, data.dtype, ReduceOp::sum, static_cast<int>(peer)};
}

Request receive(View data, std::uint64_t peer) {
  return {ATOLL_RECV, {}, data, data.count, data.dtype, ReduceOp::sum, static_cast<int>(peer)};
}

void submit_messages(const Call& call, std::vector<Request> messages) {
  std::erase_if(messages, [](const Request& message) { return message.count == 0; });
  if (!messages.empty()) call.submit(std::move(messages));
}

void copy_unless_there(const Call& call, View dst, ConstView src) {
  if (dst.data != src.data && src.count > 0) call.stream.copy(dst.data, src.data, src.bytes());
}

void composed_gather(const Call& call) {
  const auto& [kind, src, dst, count, dtype, reduction, root, counts, part_of] = call.request;
  if (call.impl.axis.index != root)
    return submit_messages(call, {send(src, static_cast<std::uint64_t>(root))});
  std::vector<Request> messages;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    if (r != call.rank()) messages.push_back(receive(dst.part(r * count, count), r));
  }
  submit_messages(call, std::move(messages));
  copy_unless_there(call, dst.part(call.rank() * count, count), src);
}

void composed_scatter(const Call& call) {
  const auto& [kind, src, dst, count, dtype, reduction, root, counts, part_of] = call.request;
  if (call.impl.axis.index != root)
    return submit_messages(call, {receive(dst, static_cast<std::uint64_t>(root))});
  std::vector<Request> messages;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    if (r != call.rank()) messages.push_back(send(src.part(r * count, count), r));
  }
  submit_messages(call, std::move(messages));
  copy_unless_there(call, dst, src.part(call.rank() * count, count));
}

void composed_all_gather_v(const Call& call) {
  const auto& [kind, src, dst, count, dtype, reduction, root, counts, part_of] = call.request;
  std::vector<Request> messages;
  std::uint64_t first = 0, own = 0;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    if (r == call.rank()) {
      own = first;
    } else {
      messages.push_back(send(src, r));
      messages.push_back(receive(dst.part(first, counts[r]), r));
    }
    first += counts[r];
  }
  submit_messages(call, std::move(messages));
  copy_unless_there(call, dst.part(own, src.count), src);
}

void exchange_v(const Call& call, ConstView src, View parts) {
  const std::vector<std::uint64_t>& counts = call.request.counts;
  const std::uint64_t own = counts[call.rank()];
  std::vector<Request> messages;
  std::uint64_t first = 0;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    if (r == call.rank()) {
      copy_unless_there(call, parts.part(r * own, own), src.part(first, own));
    } else {
      messages.push_back(send(src.part(first, counts[r]), r));
      messages.push_back(receive(parts.part(r * own, own), r));
    }
    first += counts[r];
  }
  submit_messages(call, std::move(messages));
}

}  // namespace atoll_v1::atoll
