// Fallback sums in two levels, which send the fewest possible bytes between hosts.
//
// The n ranks are on H hosts with L ranks each. Rank (h, l) is rank l of host h, and computes the
// sum of slice (h, l) of the data. Column l consists of the slices (*, l) of all hosts. First, rank
// l of each host adds column l over the ranks of its host. Then the ranks (*, l) exchange these
// partial sums and add them.
//
// Bytes sent by a rank, as a share of the data: (L - 1) / L inside its host and (n - L) / n / L to
// other hosts. One all_to_all over all ranks sends (n - L) / n to other hosts.
//
// Partial sums are not rounded, so the result has the bits of the tree over all ranks. For this
// reason 16-bit elements are converted to f32 before they are sent, which doubles the bytes sent
// inside a host.
//
// The data is processed in pieces of bounded size, so that the scratch memory is bounded: 4 MiB on
// the host, where a piece stays in the caches, and 192 MiB on a GPU, where a piece launches three
// kernels, two copies and two groups of messages. For each piece a rank sends one message to each
// of its peers.
//
// If the ranks of a host have a group of their own and all slices are equal, an all_to_all of that
// group replaces the messages inside the host and one of the copies: the copy engines of a GPU can
// run it.
#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "comm/fallback.hpp"

namespace atoll_v1::atoll {
namespace {

bool is_power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

// Returns the type of partial sums: f32 for 16-bit types, otherwise the type itself.
DType wide(DType dtype) { return is_16_bit(dtype) ? DType::f32 : dtype; }

// Size of one piece in bytes: its elements of all slices together, in the type of partial sums.
std::uint64_t piece_bytes(DeviceKind memory) {
  return std::uint64_t{memory == DeviceKind::cpu ? 4u : 192u} << 20;
}

// Returns the largest number of elements that one slice has in a piece.
std::uint64_t piece_of_slice(const GroupShape& shape, DType dtype) {
  // A multiple of 16 bytes, so that kernels can read packs of elements.
  const std::uint64_t most = piece_bytes(shape.memory) / (shape.ranks * size_of(wide(dtype)));
  return std::max<std::uint64_t>(most / 8 * 8, 1);
}

// This rank's position as host and column, and the number of elements that each slice has in one
// piece.
class Grid {
 public:
  Grid(const GroupShape& shape, DType dtype, std::span<const std::uint64_t> counts,
       std::uint64_t first)
      : intra_(static_cast<std::uint64_t>(shape.levels->intra())), rank_(shape.rank) {
    const std::uint64_t most = piece_of_slice(shape, dtype);
    is_even_ = std::ranges::count(counts, counts.front()) == std::ssize(counts);
    for (const std::uint64_t count : counts) {
      counts_.push_back(std::min(most, count - std::min(first, count)));
    }
  }

  std::uint64_t intra() const { return intra_; }
  std::uint64_t inter() const { return counts_.size() / intra_; }
  std::uint64_t column() const { return rank_ % intra_; }
  std::uint64_t host() const { return rank_ / intra_; }
  std::uint64_t rank(std::uint64_t host, std::uint64_t column) const {
    return host * intra_ + column;
  }

  std::uint64_t count(std::uint64_t rank) const { return counts_[rank]; }
  std::uint64_t mine() const { return counts_[rank_]; }
  // Returns true if the slices have the same number of elements, in this piece and in all others.
  bool is_even() const { return is_even_; }
  std::uint64_t total() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
  }
  // A column consists of one slice per host. Returns the number of elements in those slices of
  // `column` that belong to the hosts before `host`.
  std::uint64_t before(std::uint64_t host, std::uint64_t column) const {
    std::uint64_t sum = 0;
    for (std::uint64_t h = 0; h < host; ++h) sum += counts_[rank(h, column)];
    return sum;
  }
  std::uint64_t height(std::uint64_t column) const { return before(inter(), column); }
  // Returns the number of elements in the columns before `column`.
  std::uint64_t begin(std::uint64_t column) const {
    std::uint64_t sum = 0;
    for (std::uint64_t c = 0; c < column; ++c) sum += height(c);
    return sum;
  }
  std::uint64_t height() const { return height(column()); }
  // Returns the largest height of a column.
  std::uint64_t most_height() const {
    std::uint64_t most = 0;
    for (std::uint64_t c = 0; c < intra_; ++c) most = std::max(most, height(c));
    return most;
  }
  // Returns the largest number of elements of a rank.
  std::uint64_t longest() const { return *std::ranges::max_element(counts_); }

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t intra_, rank_;
  bool is_even_ = false;
};

// The views in scratch memory that are used to sum one piece in two levels.
struct Pieces {
  View own;      // this rank's data, grouped by the local rank that adds it
  View columns;  // contributions of this host's ranks to the data that this rank adds
  View partial;  // sum over this host of the data that this rank adds
  View slices;   // partial sums of this rank's slice, one per host

  // The elements of each view for a column of `height` elements and a slice of `count` elements.
  static std::array<std::uint64_t, 4> counts(const Grid& grid, std::uint64_t height,
                                             std::uint64_t count) {
    return {grid.total(), grid.intra() * height, height, grid.inter() * count};
  }
  Pieces(DType dtype, const Grid& grid, View scratch) {
    auto* next = static_cast<std::byte*>(scratch.data);
    const auto elements = counts(grid, grid.height(), grid.mine());
    View* const views[] = {&own, &columns, &partial, &slices};
    for (std::size_t i = 0; i < elements.size(); next += views[i++]->bytes()) {
      *views[i] = {next, elements[i], wide(dtype)};
    }
  }
};

// Copies one piece of `src`, which begins at element `first` of each slice, to `own`. The copy is
// grouped by the local rank that adds it, in the type of partial sums, and multiplied by this
// rank's factor.
void pack(const FallbackContext& call, const Grid& grid, ConstView src,
          std::span<const std::uint64_t> counts, std::uint64_t first, View own) {
  if (grid.is_even()) {
    call.ops().pack_rows(call.stream, own, src,
                         {.rows = grid.inter(),
                          .columns = grid.intra(),
                          .count = grid.mine(),
                          .stride = counts.front(),
                          .first = first},
                         call.operation.reduction.factor);
    return;
  }
  std::vector<std::uint64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  for (std::uint64_t c = 0, at = 0; c < grid.intra(); ++c) {
    for (std::uint64_t h = 0; h < grid.inter(); ++h) {
      const std::uint64_t r = grid.rank(h, c);
      const std::uint64_t count = grid.count(r);
      if (count == 0) continue;
      const View to = own.part(at, count);
      const ConstView from = src.part(begins[r] + first, count);
      at += count;
      if (is_16_bit(src.dtype)) {
        call.ops().cast(call.stream, to, from);
      } else if (call.operation.reduction.factor == 1.0) {
        call.stream.copy(to.data, from.data, from.bytes());
      } else {
        call.ops().scale(call.stream, to, from, call.operation.reduction.factor);
      }
    }
  }
  if (is_16_bit(src.dtype) && call.operation.reduction.factor != 1.0 && own.count > 0) {
    call.ops().scale(call.stream, own, own, call.operation.reduction.factor);
  }
}

void exchange_intra(const FallbackContext& call, const Grid& grid, View own, View columns) {
  if (grid.is_even() && call.all_to_all_intra(own, columns, grid.height())) return;
  exchange(
      call, {grid.rank(grid.host(), 0), 1, grid.intra()},
      [&](std::uint64_t c) { return own.part(grid.begin(c), grid.height(c)); },
      [&](std::uint64_t c) { return columns.part(c * grid.height(), grid.height()); });
}

void exchange_inter(const FallbackContext& call, const Grid& grid, View partial, View slices) {
  const std::uint64_t column = grid.column();
  exchange(
      call, {column, grid.intra(), grid.inter()},
      [&](std::uint64_t h) {
        return partial.part(grid.before(h, column), grid.count(grid.rank(h, column)));
      },
      [&](std::uint64_t h) { return slices.part(h * grid.mine(), grid.mine()); });
}

// Sums one piece over all ranks. `dst` is the part of the result that belongs to the piece.
void sum_piece(const FallbackContext& call, const Grid& grid, const Pieces& pieces, View dst) {
  const ReduceOp op = call.operation.reduction.op;
  const bool divides = op == ReduceOp::avg;
  const Levels& levels = *call.shape.levels;
  exchange_intra(call, grid, pieces.own, pieces.columns);
  sum(call, {pieces.partial, pieces.columns, divides ? ReduceOp::sum : op, levels.intra_block});
  exchange_inter(call, grid, pieces.partial, pieces.slices);
  sum(call, {dst, pieces.slices, op, levels.inter_block, nullptr, divides ? call.ranks() : 0});
}

}  // namespace

std::vector<int> hosts_of(const Axis& axis) {
  std::vector<int> hosts;
  for (const int rank : axis.ranks) {
    hosts.push_back(axis.world->placements()[static_cast<std::size_t>(rank)].host);
  }
  return hosts;
}

std::optional<Levels> levels_of(std::span<const int> hosts, int block) {
  const atoll_levels::HostLayout layout(hosts);
  const int of_host = layout.ranks_per_host();
  if (of_host == 0) return std::nullopt;
  if (block == 0 || block == of_host) {
    if (block == 0 && !is_power_of_two(of_host)) return std::nullopt;
    return Levels{layout, 0, 0};
  }
  if (block % of_host == 0 && is_power_of_two(of_host)) return Levels{layout, 0, block / of_host};
  if (of_host % block == 0 && is_power_of_two(of_host / block)) return Levels{layout, block, 0};
  return std::nullopt;
}

bool sums_by_levels(const GroupShape& shape, const Operation& operation) {
  if (!shape.levels) return false;
  const DType dtype = operation.dtype;
  const bool saves =
      static_cast<std::size_t>(shape.levels->intra()) * size_of(dtype) > size_of(wide(dtype));
  // The average of the last level divides by the number of all ranks, not by the number of parts
  // that it adds. Only the kernel for CPU memory supports such a divisor.
  return saves && (operation.reduction.op != ReduceOp::avg || shape.memory == DeviceKind::cpu);
}

std::uint64_t scratch_of_levels(const GroupShape& shape, const Operation& operation,
                                std::span<const std::uint64_t> counts) {
  // The first piece is the largest one, so its size is enough for all pieces. All ranks use the
  // size of the rank that needs most: scratch memory then has the same place on all ranks.
  const Grid grid(shape, operation.dtype, counts, 0);
  const auto elements = Pieces::counts(grid, grid.most_height(), grid.longest());
  return std::accumulate(elements.begin(), elements.end(), std::uint64_t{0}) *
         size_of(wide(operation.dtype));
}

void sum_by_levels(const FallbackContext& call, ConstView src,
                   std::span<const std::uint64_t> counts, View dst, View scratch) {
  const DType dtype = call.operation.dtype;
  const std::uint64_t step = piece_of_slice(call.shape, dtype);
  const std::uint64_t longest = *std::max_element(counts.begin(), counts.end());
  for (std::uint64_t first = 0; first < longest; first += step) {
    const Grid grid(call.shape, dtype, counts, first);
    const Pieces pieces(dtype, grid, scratch);
    pack(call, grid, src, counts, first, pieces.own);
    sum_piece(call, grid, pieces, dst.part(std::min(first, dst.count), grid.mine()));
  }
}

}  // namespace atoll_v1::atoll
