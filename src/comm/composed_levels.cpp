// Sums in two levels: each byte crosses between hosts only as often as it must.
//
// n ranks are H hosts of L; rank (h, l) sums slice (h, l). Inside a host, rank l sums its column,
// the slices (*, l), of that host's ranks; across hosts the ranks (*, l) exchange these sums and add
// them up. Bytes sent by a rank inside its host: (L - 1) / L of the data; to other hosts: (n - L) / n
// / L of it, where one all_to_all sends (n - L) / n.
// Between the levels partial sums are not rounded: the 16-bit types are widened to f32 first. So the
// bits are those of the tree over all ranks at once, wherever a host's ranks are a subtree of it.
#include <algorithm>
#include <bit>
#include <numeric>

#include "comm/composed.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

bool is_power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// The type of partial sums.
DType wide(DType dtype) { return is_16_bit(dtype) ? DType::f32 : dtype; }

// A rank's place, and where slices begin.
class Grid {
 public:
  Grid(const Call& call, std::span<const std::uint64_t> counts)
      : counts_(counts),
        inner_(static_cast<std::uint64_t>(call.impl.levels->inner)),
        rank_(call.rank()) {}

  std::uint64_t inner() const { return inner_; }
  std::uint64_t outer() const { return counts_.size() / inner_; }
  std::uint64_t column() const { return rank_ % inner_; }
  std::uint64_t host() const { return rank_ / inner_; }
  std::uint64_t rank(std::uint64_t host, std::uint64_t column) const {
    return host * inner_ + column;
  }

  std::uint64_t total() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
  }
  std::uint64_t mine() const { return counts_[rank_]; }
  // Elements of this rank's column on the hosts before `host`; of the whole of it with outer().
  std::uint64_t before(std::uint64_t host) const {
    std::uint64_t sum = 0;
    for (std::uint64_t h = 0; h < host; ++h) sum += counts_[rank(h, column())];
    return sum;
  }
  std::uint64_t height() const { return before(outer()); }
  // Slice r of all slices.
  ConstView slice(ConstView whole, std::uint64_t r) const {
    const auto first = std::accumulate(
        counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(r), std::uint64_t{0});
    return whole.part(first, counts_[r]);
  }
  // This rank's slice of `host` in its column.
  View of_host(View column_of_mine, std::uint64_t host) const {
    return column_of_mine.part(before(host), counts_[rank(host, column())]);
  }

 private:
  std::span<const std::uint64_t> counts_;
  std::uint64_t inner_, rank_;
};

// The pieces of scratch memory, in the order of their use.
struct Pieces {
  std::uint64_t own, columns, partial, slices, sum;  // elements

  Pieces(const Call& call, const Grid& grid)
      : own(is_16_bit(call.request.dtype) || call.request.reduction.factor != 1.0 ? grid.total()
                                                                                  : 0),
        columns(grid.inner() * grid.height()),
        partial(grid.height()),
        slices(grid.outer() * grid.mine()),
        sum(is_16_bit(call.request.dtype) ? grid.mine() : 0) {}
  std::uint64_t elements() const { return own + columns + partial + slices + sum; }
};

// What this rank contributes, in the type of partial sums and with its factor.
ConstView contribution(const Call& call, ConstView src, View room) {
  ConstView own = src;
  if (room.count == 0) return own;
  if (is_16_bit(src.dtype)) {
    call.impl.device.ops().cast(call.stream, room, src);
    own = room;
  }
  if (call.request.reduction.factor != 1.0) scale(call, room, own);
  return room;
}

void exchange_inside(const Call& call, const Grid& grid, ConstView own, View columns) {
  std::vector<Request> messages;
  for (std::uint64_t c = 0; c < grid.inner(); ++c) {
    const View column = columns.part(c * grid.height(), grid.height());
    const std::uint64_t peer = grid.rank(grid.host(), c);
    for (std::uint64_t h = 0; h < grid.outer(); ++h) {
      const ConstView theirs = grid.slice(own, grid.rank(h, c));
      if (c == grid.column()) {
        copy_unless_there(call, grid.of_host(column, h), theirs);
      } else {
        messages.push_back(send(theirs, peer));
        messages.push_back(receive(grid.of_host(column, h), peer));
      }
    }
  }
  submit_messages(call, std::move(messages));
}

void exchange_across(const Call& call, const Grid& grid, View partial, View slices) {
  std::vector<Request> messages;
  for (std::uint64_t h = 0; h < grid.outer(); ++h) {
    const View from = slices.part(h * grid.mine(), grid.mine());
    const View theirs = grid.of_host(partial, h);
    if (h == grid.host()) {
      copy_unless_there(call, from, theirs);
    } else {
      messages.push_back(send(theirs, grid.rank(h, grid.column())));
      messages.push_back(receive(from, grid.rank(h, grid.column())));
    }
  }
  submit_messages(call, std::move(messages));
}

}  // namespace

std::optional<Levels> levels_of(std::span<const int> hosts, int block) {
  const auto next =
      std::find_if(hosts.begin(), hosts.end(), [&](int host) { return host != hosts.front(); });
  const auto inner = next - hosts.begin();
  const auto ranks = std::ssize(hosts);
  if (inner < 2 || inner == ranks || ranks % inner != 0) return std::nullopt;
  for (std::ptrdiff_t r = 0; r < ranks; ++r) {
    const bool begins = r % inner == 0;
    const auto at = static_cast<std::size_t>(r);
    if (r > 0 && (hosts[at] != hosts[at - 1]) != begins) return std::nullopt;
  }
  const int of_host = static_cast<int>(inner);
  if (block == 0 || block == of_host) {
    if (block == 0 && !is_power_of_two(of_host)) return std::nullopt;
    return Levels{of_host, 0, 0};
  }
  if (block % of_host == 0 && is_power_of_two(of_host)) return Levels{of_host, 0, block / of_host};
  if (of_host % block == 0 && is_power_of_two(of_host / block)) return Levels{of_host, block, 0};
  return std::nullopt;
}

bool sums_by_levels(const Call& call) {
  if (!call.impl.levels) return false;
  const DType dtype = call.request.dtype;
  const bool saves =
      static_cast<std::size_t>(call.impl.levels->inner) * size_of(dtype) > size_of(wide(dtype));
  // Only the host's kernel divides by another number than that of its parts.
  return saves && (call.request.reduction.op != ReduceOp::avg ||
                   call.impl.device.kind() == DeviceKind::host);
}

std::uint64_t scratch_of_levels(const Call& call, std::span<const std::uint64_t> counts) {
  return Pieces(call, Grid(call, counts)).elements() * size_of(wide(call.request.dtype));
}

void sum_by_levels(const Call& call, ConstView src, std::span<const std::uint64_t> counts, View dst,
                   View scratch) {
  const Grid grid(call, counts);
  const Pieces pieces(call, grid);
  std::uint64_t taken = 0;
  const auto take = [&](std::uint64_t elements) {
    const View piece{static_cast<std::byte*>(scratch.data) + taken, elements, wide(src.dtype)};
    taken += piece.bytes();
    return piece;
  };
  const ConstView own = contribution(call, src, take(pieces.own));
  const View columns = take(pieces.columns), partial = take(pieces.partial),
             slices = take(pieces.slices), widened = take(pieces.sum);
  const ReduceOp op = call.request.reduction.op;
  const ReduceOp inside = op == ReduceOp::avg ? ReduceOp::sum : op;
  const Levels& levels = *call.impl.levels;

  exchange_inside(call, grid, own, columns);
  sum(call, {partial, columns, grid.inner(), inside, levels.inner_block});
  exchange_across(call, grid, partial, slices);
  const View result = is_16_bit(dst.dtype) ? widened : dst;
  const std::uint64_t divisor = op == ReduceOp::avg ? call.ranks() : 0;
  sum(call, {result, slices, grid.outer(), op, levels.outer_block, nullptr, divisor});
  if (is_16_bit(dst.dtype) && dst.count > 0) {
    call.impl.device.ops().cast(call.stream, dst, widened);
  }
}

}  // namespace atoll_v1::atoll
