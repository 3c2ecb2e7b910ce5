// The halving algorithm: all_reduce of medium-sized data over H hosts. Each rank exchanges 2 log2 H
// messages, one at a time, that carry halves, quarters, ... of its share of the data.
//
// A column consists of one rank per host; these ranks are counterparts. The number of columns is
// the number of ranks on the smallest host, and each column reduces an equal share of the data.
// Steps:
// 1. On each host, the rank that belongs to a column sums the contributions of the host's ranks to
//    the column's share, and writes the sum to its dst.
// 2. Within a column, the ranks of hosts at distance 1, 2, 4, ... exchange halves of their current
//    range: each rank sends one half and reduces the other. After log2 H exchanges each rank has
//    the complete sum of 1 / H of the share. Then the ranks exchange the finished halves in the
//    opposite order. host_pairs.hpp explains what happens if H is not a power of two.
// 3. The ranks of a host copy the finished shares from each other.
//
// Order of the sum: first the ranks of each host, then adjacent pairs of hosts. Data is rounded to
// the dtype before it is sent to another host. 16-bit types are therefore rounded 1 + log2 H times,
// and once more for paired hosts; two_level rounds them only twice. Bytes between hosts, for S
// bytes of data: each host sends and receives 2 (H - 1) / H S, as in two_level, but in 2 log2 H
// messages per rank instead of 2 (H - 1). Paired hosts move 2 S more.
#include "collectives/collectives.hpp"
#include "collectives/host_pairs.hpp"

namespace atoll_collectives {
namespace {

// Exchanges halves (step 2 of the halving algorithm) with the hosts at `distance` and at all larger
// distances. On entry `range` holds the sum over `distance` neighboring hosts; on return it holds
// the sum over all hosts.
void descend(HostPairs& pairs, Exchange& exchange, unsigned distance, std::span<std::byte> range) {
  if (distance == pairs.participants()) return;
  // Cuts the range into a left and a right half. The left half consists of whole cache lines and
  // may be the larger half.
  const std::size_t middle = std::min(round_up_to_line(range.size() / 2), range.size());
  const auto left = range.first(middle);
  const auto right = range.subspan(middle);
  const bool low = (pairs.position() & distance) == 0;
  const auto kept = low ? left : right;
  const auto given = low ? right : left;
  const int other = pairs.rank_at(pairs.position() ^ distance);
  exchange.send(other, given);
  pairs.receive(other, pairs.incoming.first(kept.size()));
  pairs.add(kept, low ? HostPairs::Side::right : HostPairs::Side::left, pairs.op_at(distance));
  descend(pairs, exchange, 2 * distance, kept);
  // The range `given` may be overwritten, although this rank sent it: the peer received that data
  // before it began to send the finished range.
  exchange.send(other, kept);
  pairs.receive(other, given);
}

}  // namespace

void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const int columns = group.layout.fewest_ranks();
  const EvenSplit shares(size, columns);
  std::byte* dst = destination(operation);
  for (int column = 0; column < columns; ++column) {
    const Block share = shares[column];
    group.slices.push_back({share.offset, share.bytes, column, dst + share.offset});
  }
  sum(group, operation, {size, size}, {.op = partial_op(operation)}, &exchange);
  if (const int self = group.sync.self(); self < columns) {
    const std::span own(dst + shares[self].offset, shares[self].bytes);
    HostPairs pairs(group, operation, exchange, own.size());
    pairs.run(own, [&] { descend(pairs, exchange, 1, own); });
  }
  for (int column = 0; column < columns; ++column) {
    const Block share = shares[column];
    group.offer(column, {Offer::From::dst, share.offset, share.offset, share.bytes, everybody});
  }
  move(group, operation, {size, size}, &exchange);
}

}  // namespace atoll_collectives
