// Fallbacks that only move data. All messages of a call form one group of sends and receives,
// directly between the ranks concerned. A rank sends each block once per receiver.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/fallback.hpp"

namespace atoll_v1::atoll {
namespace {

// Compares the counts of sender and receiver: in an all_to_all of one number per rank, each rank
// tells every other rank how many elements it will send. If the counts differed, messages would
// overwrite memory or never arrive.
void compare_counts(const FallbackContext& call) {
  const std::uint64_t n = call.ranks();
  const View room = call.scratch(2 * n, DType::i64);
  const View mine = room.part(0, n), said = room.part(n, n);
  const std::vector<std::int64_t> sent(call.operation.counts.begin(), call.operation.counts.end());
  call.stream.enqueue([to = mine.as<std::int64_t>(), sent] { std::ranges::copy(sent, to); });
  call.submit({{ATOLL_ALL_TO_ALL, mine, said, 1, DType::i64}});
  call.enqueue_check([from = said.as<std::int64_t>(), expected = call.operation.recv_counts,
                      ranks = call.world_ranks(), self = call.rank()]() -> std::string {
    for (std::size_t r = 0; r < expected.size(); ++r) {
      if (static_cast<std::uint64_t>(from[r]) == expected[r]) continue;
      return fmt::format("all_to_all_v: rank {} sends {} elements to rank {}, which receives {}",
                         ranks[r], from[r], ranks[self], expected[r]);
    }
    return {};
  });
}

// Returns the offset of the block of each rank.
std::vector<std::uint64_t> begins_of(const std::vector<std::uint64_t>& counts) {
  std::vector<std::uint64_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::uint64_t{0});
  return begins;
}

Peers all_ranks(const FallbackContext& call) { return {0, 1, call.ranks()}; }

}  // namespace

Operation send_to(std::uint64_t peer, ConstView data) {
  return {ATOLL_SEND, data, {}, data.count, data.dtype, ReduceOp::sum, static_cast<int>(peer)};
}

Operation receive_from(std::uint64_t peer, View data) {
  return {ATOLL_RECV, {}, data, data.count, data.dtype, ReduceOp::sum, static_cast<int>(peer)};
}

// Performs gather and gather_v.
void fallback_gather(const FallbackContext& call) {
  const Operation& whole = call.operation;
  const auto root = static_cast<std::uint64_t>(whole.peer);
  if (call.rank() != root) return call.submit_messages({send_to(root, whole.src)});
  std::vector<Operation> messages;
  std::uint64_t first = 0;
  View own;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    const View block = whole.dst.part(first, whole.counts.empty() ? whole.count : whole.counts[r]);
    if (r == root) {
      own = block;
    } else {
      messages.push_back(receive_from(r, block));
    }
    first += block.count;
  }
  call.submit_messages(std::move(messages));
  call.copy_unless_there(own, whole.src);
}

void fallback_all_to_all_v(const FallbackContext& call) {
  const Operation& whole = call.operation;
  if (call.shape.memory == DeviceKind::cpu && call.ranks() > 1) compare_counts(call);
  const auto sent = begins_of(whole.counts), received = begins_of(whole.recv_counts);
  exchange(
      call, all_ranks(call),
      [&](std::uint64_t r) { return whole.src.part(sent[r], whole.counts[r]); },
      [&](std::uint64_t r) { return whole.dst.part(received[r], whole.recv_counts[r]); });
}

void fallback_scatter(const FallbackContext& call) {
  const Operation& whole = call.operation;
  const auto root = static_cast<std::uint64_t>(whole.peer);
  if (call.rank() != root) return call.submit_messages({receive_from(root, whole.dst)});
  std::vector<Operation> messages;
  for (std::uint64_t r = 0; r < call.ranks(); ++r) {
    if (r != root) messages.push_back(send_to(r, whole.src.part(r * whole.count, whole.count)));
  }
  call.submit_messages(std::move(messages));
  call.copy_unless_there(whole.dst, whole.src.part(root * whole.count, whole.count));
}

void fallback_all_gather_v(const FallbackContext& call) {
  const Operation& whole = call.operation;
  const auto begins = begins_of(whole.counts);
  exchange(
      call, all_ranks(call), [&](std::uint64_t) { return whole.src; },
      [&](std::uint64_t r) { return whole.dst.part(begins[r], whole.counts[r]); });
}

void exchange_v(const FallbackContext& call, ConstView src, View parts) {
  const std::vector<std::uint64_t>& counts = call.operation.counts;
  const auto begins = begins_of(counts);
  const std::uint64_t own = counts[call.rank()];
  exchange(
      call, all_ranks(call), [&](std::uint64_t r) { return src.part(begins[r], counts[r]); },
      [&](std::uint64_t r) { return parts.part(r * own, own); });
}

}  // namespace atoll_v1::atoll
