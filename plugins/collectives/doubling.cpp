// The doubling algorithm: all_reduce of small data over H hosts with log2 H messages between hosts.
//
// A leader is a rank that exchanges data with other hosts on behalf of its host. Steps:
// 1. On each host, the data of its ranks is summed into the dst of each leader.
// 2. Each leader exchanges all data with its counterparts on the hosts at distance 1, 2, 4, ...,
//    and adds the data that it receives. host_pairs.hpp explains what happens if H is not a power
//    of two.
// 3. The remaining ranks of the host copy the result from the leader.
//
// Up to `small_bytes` of data, every rank computes the sum of its host, and each host has h
// leaders, where h is the number of ranks on the smallest host. If all hosts have h ranks, step 3
// is unnecessary. For larger data, the first rank of a host is its only leader.
//
// Order of the sum: first the ranks of each host, then adjacent pairs of hosts. 16-bit types are
// rounded at every exchange, so other algorithms suit them better. Bytes between hosts, for S bytes
// of data and h leaders per host: each host sends and receives h S log2 H bytes. A flat exchange
// between h ranks per host would send h h (H - 1) S bytes per host.
#include "collectives/collectives.hpp"
#include "collectives/host_pairs.hpp"

namespace atoll_collectives {
namespace {

void lead(Group& group, const atoll_operation& operation, std::span<std::byte> data,
          Exchange& exchange) {
  using Side = HostPairs::Side;
  HostPairs pairs(group, operation, exchange, data.size());
  pairs.run(data, [&] {
    const unsigned position = pairs.position();
    for (unsigned distance = 1; distance < pairs.participants(); distance *= 2) {
      const unsigned other = position ^ distance;
      exchange.send(pairs.rank_at(other), data);
      pairs.receive(pairs.rank_at(other), pairs.incoming);
      exchange.run();  // completes the send, because add() overwrites the data that is sent
      pairs.add(data, other < position ? Side::left : Side::right, pairs.op_at(distance));
    }
  });
}

}  // namespace

void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const Extents extents{size, size};
  std::byte* dst = destination(operation);
  // Local rank of the only leader (rank that exchanges data with other hosts) if the data is large.
  constexpr int first = 0;
  const int leaders = size <= small_bytes ? group.layout.fewest_ranks() : 1;
  group.slices.push_back({0, size, leaders > 1 ? everybody : first, dst});
  sum(group, operation, extents, {.op = partial_op(operation)}, &exchange);
  if (group.sync.self() < leaders) lead(group, operation, {dst, size}, exchange);
  if (group.sync.size() == leaders) return;
  group.offer(first, {Offer::From::dst, 0, 0, size, everybody});
  move(group, operation, extents, &exchange);
}

}  // namespace atoll_collectives
