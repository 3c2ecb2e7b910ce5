#include "collectives/halving.hpp"

#include <algorithm>
#include <bit>

#include "sdk/describe.hpp"

namespace atoll_sdk {
namespace {

// A part of the column's share, in bytes.
struct Range {
  std::size_t begin;
  std::size_t bytes;
};

// Whole cache lines go to the left.
Range left_of(Range range) {
  const std::size_t half = (range.bytes / 2 + cache_line - 1) / cache_line * cache_line;
  return {range.begin, std::min(half, range.bytes)};
}
Range right_of(Range range) {
  const Range left = left_of(range);
  return {range.begin + left.bytes, range.bytes - left.bytes};
}

// The exchange in a column. Vocabulary. Place: number of a host among those that exchange, which is
// a power of two of them.
class Column {
 public:
  Column(Group& group, const atoll_operation& operation, std::span<std::byte> share,
         Exchange& exchange)
      : group_(group),
        operation_(operation),
        share_(share),
        exchange_(exchange),
        places_(std::bit_floor(static_cast<unsigned>(group.layout.hosts()))),
        host_(static_cast<unsigned>(group.layout.host_of(group.rank()))),
        paired_(static_cast<unsigned>(group.layout.hosts()) - places_),
        incoming_(group.scratch(share.size())) {}

  void run() {
    if (host_ < 2 * paired_ && host_ % 2 == 1) {
      exchange_.send(rank_of(host_ - 1), share_);
      receive(rank_of(host_ - 1), share_);
      return;
    }
    const bool has_pair = host_ < 2 * paired_;
    if (has_pair) {
      receive(rank_of(host_ + 1), incoming_);
      add({0, share_.size()}, Side::right, partial_op());
    }
    place_ = has_pair ? host_ / 2 : host_ - paired_;
    descend(1, {0, share_.size()});
    if (has_pair) exchange_.send(rank_of(host_ + 1), share_);
  }

 private:
  enum class Side {
    left,
    right
  };

  // From hosts that have sums of `range` over `distance` hosts each to the sum over all.
  void descend(unsigned distance, Range range) {
    if (distance == places_) return;
    const bool low = (place_ & distance) == 0;
    const Range kept = low ? left_of(range) : right_of(range);
    const Range given = low ? right_of(range) : left_of(range);
    const int other = rank_of(host_at(place_ ^ distance));
    exchange_.send(other, part(given));
    receive(other, incoming_.first(kept.bytes));
    const bool last = 2 * distance == places_;
    add(kept, low ? Side::right : Side::left, last ? operation_.op : partial_op());
    descend(2 * distance, kept);
    // The other one has had `given` since it sent what is awaited here.
    exchange_.send(other, part(kept));
    receive(other, part(given));
  }

  unsigned host_at(unsigned place) const { return place < paired_ ? 2 * place : place + paired_; }
  int rank_of(unsigned host) const {
    return group_.layout.twin(group_.rank(), static_cast<int>(host));
  }
  std::int32_t partial_op() const { return operation_.op == ATOLL_AVG ? ATOLL_SUM : operation_.op; }
  std::span<std::byte> part(Range range) const { return share_.subspan(range.begin, range.bytes); }

  void receive(int rank, std::span<std::byte> to) {
    exchange_.run_until_received(rank, exchange_.recv(rank, to));
  }

  // `side` of the own data on which what arrived stands in the sum.
  void add(Range range, Side side, std::int32_t op) {
    const bool left = side == Side::left;
    void* own = part(range).data();
    const void* parts[] = {left ? incoming_.data() : own, left ? own : incoming_.data()};
    group_.reduce({sizeof(atoll_reduction), &own, parts, nullptr, 1, 2,
                   range.bytes / dtype_size(operation_.dtype), operation_.dtype, op, group_.size(),
                   0});
  }

  Group& group_;
  const atoll_operation& operation_;
  std::span<std::byte> share_;
  Exchange& exchange_;
  unsigned places_;
  unsigned host_;
  unsigned paired_;  // pairs of hosts of which one hands over
  std::span<std::byte> incoming_;
  unsigned place_ = 0;
};

}  // namespace

void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t bytes = operation.count * dtype_size(operation.dtype);
  const int columns = group.layout.fewest_ranks();
  const auto shares = static_cast<std::size_t>(columns);
  const std::size_t even = (bytes + shares - 1) / shares;
  const std::size_t each = (even + cache_line - 1) / cache_line * cache_line;
  auto* dst = static_cast<std::byte*>(operation.dst);
  const auto share_of = [&](int column) -> Range {
    const std::size_t begin = std::min(static_cast<std::size_t>(column) * each, bytes);
    return {begin, std::min(each, bytes - begin)};
  };

  for (int column = 0; column < columns; ++column) {
    const Range share = share_of(column);
    group.slices.push_back({share.begin, share.bytes, column, dst + share.begin});
  }
  const Extents extents{bytes, bytes};
  sum(group, operation, extents, {.op = operation.op == ATOLL_AVG ? ATOLL_SUM : operation.op},
      &exchange);
  const int self = group.board.self();
  if (self < columns) {
    const Range own = share_of(self);
    Column(group, operation, {dst + own.begin, own.bytes}, exchange).run();
  }
  for (int column = 0; column < columns; ++column) {
    const Range share = share_of(column);
    group.offers[static_cast<std::size_t>(column)].push_back(
        {Offer::From::dst, share.begin, share.begin, share.bytes, everybody});
  }
  move(group, operation, extents, &exchange);
}

}  // namespace atoll_sdk
