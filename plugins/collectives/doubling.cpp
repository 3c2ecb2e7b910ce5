#include "collectives/doubling.hpp"

#include "collectives/host_pairs.hpp"

namespace atoll_collectives {
namespace {

void lead(Group& group, const atoll_operation& operation, std::span<std::byte> data,
          Exchange& exchange) {
  using Side = HostPairs::Side;
  HostPairs pairs(group, operation, exchange, data.size());
  if (pairs.hands_over()) {
    exchange.send(pairs.partner(), data);
    exchange.run();
    return pairs.receive(pairs.partner(), data);
  }
  if (pairs.is_paired()) {
    pairs.receive(pairs.partner(), pairs.incoming);
    pairs.add(data, Side::right, partial_op(operation));
  }
  const unsigned position = pairs.position();
  for (unsigned distance = 1; distance < pairs.participants(); distance *= 2) {
    const unsigned other = position ^ distance;
    exchange.send(pairs.rank_at(other), data);
    pairs.receive(pairs.rank_at(other), pairs.incoming);
    exchange.run();  // completes the send: add() overwrites the memory that the send reads
    pairs.add(data, other < position ? Side::left : Side::right, pairs.op_at(distance));
  }
  if (pairs.is_paired()) exchange.send(pairs.partner(), data);
}

}  // namespace

void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t bytes = operation.count * dtype_size(operation.dtype);
  const Extents extents{bytes, bytes};
  auto* dst = static_cast<std::byte*>(operation.dst);
  constexpr int first = 0;  // local rank of the only leader when the data is large
  const int leaders = bytes <= small_bytes ? group.layout.fewest_ranks() : 1;
  group.slices.push_back({0, bytes, leaders > 1 ? everybody : first, dst});
  sum(group, operation, extents, {.op = partial_op(operation)}, &exchange);
  if (group.sync.self() < leaders) lead(group, operation, {dst, bytes}, exchange);
  if (group.sync.size() == leaders) return;
  group.offers[first].push_back({Offer::From::dst, 0, 0, bytes, everybody});
  move(group, operation, extents, &exchange);
}

}  // namespace atoll_collectives
