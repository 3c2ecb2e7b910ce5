#include "collectives/halving.hpp"

#include "collectives/block.hpp"
#include "collectives/host_pairs.hpp"

namespace atoll_collectives {
namespace {

// left_of() and right_of() return the two halves of a range. The left half consists of whole cache
// lines and may be the larger one.
Block left_of(Block range) {
  return {range.offset, std::min(round_up_to_line(range.bytes / 2), range.bytes)};
}
Block right_of(Block range) {
  const Block left = left_of(range);
  return {range.offset + left.bytes, range.bytes - left.bytes};
}

// Performs one rank's part of the exchange within a column: the set of counterparts, one per host,
// that reduce one share of the data.
class Column {
 public:
  Column(Group& group, const atoll_operation& operation, std::span<std::byte> share,
         Exchange& exchange)
      : operation_(operation),
        share_(share),
        exchange_(exchange),
        pairs_(group, operation, exchange, share.size()) {}

  void run() {
    if (pairs_.hands_over()) {
      exchange_.send(pairs_.partner(), share_);
      return pairs_.receive(pairs_.partner(), share_);
    }
    if (pairs_.is_paired()) {
      pairs_.receive(pairs_.partner(), pairs_.incoming);
      pairs_.add(share_, HostPairs::Side::right, partial_op(operation_));
    }
    descend(1, {0, share_.size()});
    if (pairs_.is_paired()) exchange_.send(pairs_.partner(), share_);
  }

 private:
  // On entry `range` holds the sum over `distance` neighbouring hosts; on return it holds the sum
  // over all hosts.
  void descend(unsigned distance, Block range) {
    if (distance == pairs_.participants()) return;
    const bool low = (pairs_.position() & distance) == 0;
    const Block kept = low ? left_of(range) : right_of(range);
    const Block given = low ? right_of(range) : left_of(range);
    const int other = pairs_.rank_at(pairs_.position() ^ distance);
    exchange_.send(other, part(given));
    pairs_.receive(other, pairs_.incoming.first(kept.bytes));
    pairs_.add(part(kept), low ? HostPairs::Side::right : HostPairs::Side::left,
               pairs_.op_at(distance));
    descend(2 * distance, kept);
    // The range `given` may be overwritten, although this rank sent it: the peer received that data
    // before it began to send the finished range.
    exchange_.send(other, part(kept));
    pairs_.receive(other, part(given));
  }

  std::span<std::byte> part(Block range) const { return share_.subspan(range.offset, range.bytes); }

  const atoll_operation& operation_;
  std::span<std::byte> share_;
  Exchange& exchange_;
  HostPairs pairs_;
};

}  // namespace

void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t bytes = operation.count * dtype_size(operation.dtype);
  const int columns = group.layout.fewest_ranks();
  const EvenSplit shares(bytes, columns);
  auto* dst = static_cast<std::byte*>(operation.dst);
  for (int column = 0; column < columns; ++column) {
    const Block share = shares[column];
    group.slices.push_back({share.offset, share.bytes, column, dst + share.offset});
  }
  const Extents extents{bytes, bytes};
  sum(group, operation, extents, {.op = partial_op(operation)}, &exchange);
  const int self = group.sync.self();
  if (self < columns) {
    const Block own = shares[self];
    Column(group, operation, {dst + own.offset, own.bytes}, exchange).run();
  }
  for (int column = 0; column < columns; ++column) {
    const Block share = shares[column];
    group.offers[static_cast<std::size_t>(column)].push_back(
        {Offer::From::dst, share.offset, share.offset, share.bytes, everybody});
  }
  move(group, operation, extents, &exchange);
}

}  // namespace atoll_collectives
