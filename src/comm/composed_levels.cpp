// Sums in two levels: each byte crosses between hosts only as often as it must.
//
// n ranks are H hosts of L; rank (h, l) sums slice (h, l). Inside a host, rank l sums its column,
// the slices (*, l), of that host's ranks; across hosts the ranks (*, l) exchange these sums and
// add them up. Bytes sent by a rank, of the data: (L - 1) / L inside its host; (n - L) / n / L to
// other hosts, where one all_to_all sends (n - L) / n.
// Partial sums are not rounded, and so the bits are those of the tree over all ranks at once: the
// 16-bit types are widened to f32 before they go out, which doubles their bytes inside a host.
// It goes by pieces of a bounded size, so that scratch memory is bounded; a rank sends one message
// to each of its peers for a piece.
#include <algorithm>
#include <array>
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

// Of one piece of all slices, in the type of partial sums.
constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;

// Elements of a slice that belong to one piece.
std::uint64_t piece_of_slice(const Asked& asked) {
  return std::max<std::uint64_t>(piece_bytes / (asked.ranks() * size_of(wide(asked.request.dtype))),
                                 1);
}

// A rank's place among hosts and columns, and the lengths of the slices of one piece.
class Grid {
 public:
  Grid(const Asked& asked, std::span<const std::uint64_t> counts, std::uint64_t first)
      : inner_(static_cast<std::uint64_t>(asked.impl.levels->inner)), rank_(asked.rank()) {
    const std::uint64_t most = piece_of_slice(asked);
    for (const std::uint64_t count : counts) {
      counts_.push_back(std::min(most, count - std::min(first, count)));
    }
  }

  std::uint64_t inner() const { return inner_; }
  std::uint64_t outer() const { return counts_.size() / inner_; }
  std::uint64_t column() const { return rank_ % inner_; }
  std::uint64_t host() const { return rank_ / inner_; }
  std::uint64_t rank(std::uint64_t host, std::uint64_t column) const {
    return host * inner_ + column;
  }

  std::uint64_t count(std::uint64_t rank) const { return counts_[rank]; }
  std::uint64_t mine() const { return counts_[rank_]; }
  std::uint64_t total() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
  }
  // Elements of a column on the hosts before `host`.
  std::uint64_t before(std::uint64_t host, std::uint64_t column) const {
    std::uint64_t sum = 0;
    for (std::uint64_t h = 0; h < host; ++h) sum += counts_[rank(h, column)];
    return sum;
  }
  std::uint64_t height(std::uint64_t column) const { return before(outer(), column); }
  std::uint64_t height() const { return height(column()); }

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t inner_, rank_;
};

// Scratch memory of one piece.
struct Pieces {
  View own;      // what this rank contributes, column by column
  View columns;  // of this rank's column: the parts of the ranks of its host
  View partial;  // their sum
  View slices;   // of this rank's slice: the sums of all hosts
  View sum;      // theirs, before it is rounded to 16 bits

  static std::array<std::uint64_t, 5> counts(const Asked& asked, const Grid& grid) {
    return {grid.total(), grid.inner() * grid.height(), grid.height(), grid.outer() * grid.mine(),
            is_16_bit(asked.request.dtype) ? grid.mine() : 0};
  }
  Pieces(const Call& call, const Grid& grid, View scratch) {
    auto* next = static_cast<std::byte*>(scratch.data);
    const auto elements = counts(call, grid);
    View* const views[] = {&own, &columns, &partial, &slices, &sum};
    for (std::size_t i = 0; i < elements.size(); next += views[i++]->bytes()) {
      *views[i] = {next, elements[i], wide(call.request.dtype)};
    }
  }
};

// Elements `first` and on of each slice, column by column, in the type of partial sums and with
// this rank's factor.
void pack(const Call& call, const Grid& grid, ConstView src, std::span<const std::uint64_t> counts,
          std::uint64_t first, View own) {
  std::vector<std::uint64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  for (std::uint64_t c = 0, at = 0; c < grid.inner(); ++c) {
    for (std::uint64_t h = 0; h < grid.outer(); ++h) {
      const std::uint64_t r = grid.rank(h, c);
      const std::uint64_t count = grid.count(r);
      if (count == 0) continue;
      const View to = own.part(at, count);
      const ConstView from = src.part(begins[r] + first, count);
      at += count;
      if (is_16_bit(src.dtype)) {
        call.impl.device.ops().cast(call.stream, to, from);
      } else if (call.request.reduction.factor == 1.0) {
        call.stream.copy(to.data, from.data, from.bytes());
      } else {
        call.impl.device.ops().scale(call.stream, to, from, call.request.reduction.factor);
      }
    }
  }
  if (is_16_bit(src.dtype) && call.request.reduction.factor != 1.0 && own.count > 0) {
    call.impl.device.ops().scale(call.stream, own, own, call.request.reduction.factor);
  }
}

void exchange_inside(const Call& call, const Grid& grid, View own, View columns) {
  std::vector<Request> messages;
  for (std::uint64_t c = 0, at = 0; c < grid.inner(); at += grid.height(c++)) {
    const View theirs = own.part(at, grid.height(c));
    const View from = columns.part(c * grid.height(), grid.height());
    if (c == grid.column()) {
      copy_unless_there(call, from, theirs);
    } else {
      messages.push_back(send(theirs, grid.rank(grid.host(), c)));
      messages.push_back(receive(from, grid.rank(grid.host(), c)));
    }
  }
  submit_messages(call, std::move(messages));
}

void exchange_across(const Call& call, const Grid& grid, View partial, View slices) {
  std::vector<Request> messages;
  for (std::uint64_t h = 0; h < grid.outer(); ++h) {
    const std::uint64_t r = grid.rank(h, grid.column());
    const View theirs = partial.part(grid.before(h, grid.column()), grid.count(r));
    const View from = slices.part(h * grid.mine(), grid.mine());
    if (h == grid.host()) {
      copy_unless_there(call, from, theirs);
    } else {
      messages.push_back(send(theirs, r));
      messages.push_back(receive(from, r));
    }
  }
  submit_messages(call, std::move(messages));
}

// dst: of this piece.
void sum_piece(const Call& call, const Grid& grid, const Pieces& pieces, View dst) {
  const ReduceOp op = call.request.reduction.op;
  const bool divides = op == ReduceOp::avg;
  const Levels& levels = *call.impl.levels;
  exchange_inside(call, grid, pieces.own, pieces.columns);
  sum(call, {pieces.partial, pieces.columns, grid.inner(), divides ? ReduceOp::sum : op,
             levels.inner_block});
  exchange_across(call, grid, pieces.partial, pieces.slices);
  const bool rounds = is_16_bit(dst.dtype);
  sum(call, {rounds ? pieces.sum : dst, pieces.slices, grid.outer(), op, levels.outer_block,
             nullptr, divides ? call.ranks() : 0});
  if (rounds && dst.count > 0) call.impl.device.ops().cast(call.stream, dst, pieces.sum);
}

}  // namespace

std::optional<Levels> levels_of(std::span<const int> hosts, int block) {
  const int of_host = ranks_per_host(hosts);
  if (of_host == 0) return std::nullopt;
  if (block == 0 || block == of_host) {
    if (block == 0 && !is_power_of_two(of_host)) return std::nullopt;
    return Levels{of_host, 0, 0};
  }
  if (block % of_host == 0 && is_power_of_two(of_host)) return Levels{of_host, 0, block / of_host};
  if (of_host % block == 0 && is_power_of_two(of_host / block)) return Levels{of_host, block, 0};
  return std::nullopt;
}

bool sums_by_levels(const Asked& asked) {
  if (!asked.impl.levels) return false;
  const DType dtype = asked.request.dtype;
  const bool saves =
      static_cast<std::size_t>(asked.impl.levels->inner) * size_of(dtype) > size_of(wide(dtype));
  // Only the host's kernel divides by another number than that of its parts.
  return saves && (asked.request.reduction.op != ReduceOp::avg ||
                   asked.impl.device.kind() == DeviceKind::host);
}

std::uint64_t scratch_of_levels(const Asked& asked, std::span<const std::uint64_t> counts) {
  const auto elements = Pieces::counts(asked, Grid(asked, counts, 0));  // no piece is larger
  return std::accumulate(elements.begin(), elements.end(), std::uint64_t{0}) *
         size_of(wide(asked.request.dtype));
}

void sum_by_levels(const Call& call, ConstView src, std::span<const std::uint64_t> counts, View dst,
                   View scratch) {
  const std::uint64_t longest = *std::max_element(counts.begin(), counts.end());
  for (std::uint64_t first = 0; first < longest; first += piece_of_slice(call)) {
    const Grid grid(call, counts, first);
    const Pieces pieces(call, grid, scratch);
    pack(call, grid, src, counts, first, pieces.own);
    sum_piece(call, grid, pieces, dst.part(std::min(first, dst.count), grid.mine()));
  }
}

}  // namespace atoll_v1::atoll
