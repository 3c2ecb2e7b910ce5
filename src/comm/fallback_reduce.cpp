// Fallback reductions, built from data movement and local sums.
//
// Vocabulary: n is the number of ranks. A slice is the part of the data that one rank sums. Parts
// are the n contributions to a slice, in rank order. `whole` is the data cut into n slices of equal
// length, padded with zeros at the end.
//
// Steps of reduce_scatter: an all_to_all, or messages when counts differ, sends the n parts of each
// slice to the rank that sums the slice. There one local pass adds the parts as an adjacent-pair
// tree. Afterwards all_reduce gathers the sums on all ranks, and reduce gathers them on the root.
// When each of several hosts has several ranks of the axis, the parts are added level by level
// instead (fallback_levels.cpp).
//
// Bytes sent by a rank: (n - 1) / n of the data; twice that for all_reduce.
//
// Factors: f32 and f64 elements are multiplied before they are sent. 16-bit elements would be
// rounded by that. For these types ranks exchange their factors (fallback_agreement.cpp), and the
// local sum applies the factors of all ranks.
#include <algorithm>
#include <array>
#include <numeric>

#include "comm/fallback.hpp"
#include "device/cpu/kernels.hpp"

namespace atoll_v1::atoll {
namespace {

using Counts = std::vector<std::uint64_t>;

// Divides scratch memory into four pieces, each aligned to 64 bytes.
class Room {
 public:
  using Sizes = std::array<std::uint64_t, 4>;  // size of each piece in bytes

  static std::uint64_t bytes(const Sizes& sizes) {
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum += padded(size);
    return sum;
  }
  Room(const FallbackContext& call, const Sizes& sizes) {
    auto* next = static_cast<std::byte*>(call.scratch(bytes(sizes), DType::u8).data);
    for (std::size_t i = 0; i < sizes.size(); next += padded(sizes[i++])) pieces_[i] = next;
  }
  View view(std::size_t piece, std::uint64_t count, DType dtype) const {
    return {pieces_[piece], count, dtype};
  }

 private:
  static std::uint64_t padded(std::uint64_t size) { return (size + 63) / 64 * 64; }

  std::array<std::byte*, 4> pieces_{};
};

// Returns true when the local sum applies the factors.
bool scales_at_sum(const Operation& operation) {
  const ReduceOp op = operation.reduction.op;
  return is_16_bit(operation.dtype) && (op == ReduceOp::sum || op == ReduceOp::avg);
}

bool scales_before_send(const Operation& operation) {
  return operation.reduction.factor != 1.0 && !is_16_bit(operation.dtype);
}

// Returns the sizes of the pieces into which scratch memory is divided for sum_slices(). Piece 0,
// of `first` bytes, is free for the caller of sum_slices().
Room::Sizes sizes_of(const GroupShape& shape, const Operation& operation, const Counts& counts,
                     std::uint64_t first = 0) {
  const std::uint64_t agreement = bytes_of_agreement(shape);
  if (sums_by_levels(shape, operation))
    return {first, agreement, scratch_of_levels(shape, operation, counts), 0};
  const std::uint64_t element = size_of(operation.dtype);
  const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  // All ranks use the size of the longest slice. On GPUs scale_source() has applied the factors, so
  // the last piece is empty. Thus scratch memory has the same place on all ranks there.
  return {first, agreement, *std::ranges::max_element(counts) * shape.ranks * element,
          scales_before_send(operation) ? all * element : 0};
}

// Cuts src into slices, where slice r has counts[r] elements. Sums this rank's slice over all ranks
// and writes the sum to dst.
void sum_slices(const FallbackContext& call, ConstView src, const Counts& counts, View dst,
                const Room& room) {
  const GroupShape& shape = call.shape;
  const Operation& operation = call.operation;
  const double* factors = agree(call, room.view(1, bytes_of_agreement(shape), DType::u8));
  if (sums_by_levels(shape, operation)) {
    const std::uint64_t bytes = scratch_of_levels(shape, operation, counts);
    return sum_by_levels(call, src, counts, dst, room.view(2, bytes, DType::u8));
  }
  const View parts = room.view(2, dst.count * call.ranks(), dst.dtype);
  if (scales_before_send(operation) && src.count > 0) {
    const View scaled = room.view(3, src.count, src.dtype);
    call.ops().scale(call.stream, scaled, src, operation.reduction.factor);
    src = scaled;
  }
  if (operation.counts.empty()) {
    call.submit({{ATOLL_ALL_TO_ALL, src, parts, dst.count, dst.dtype}});
  } else {
    exchange_v(call, src, parts);
  }
  sum(call, {dst, parts, operation.reduction.op, shape.block,
             scales_at_sum(operation) ? factors : nullptr});
}

// Copies the source of the call to `whole` and fills the rest of `whole` with zeros.
void cut(const FallbackContext& call, View whole) {
  const ConstView src = call.operation.src;
  if (src.count == 0) return;
  call.stream.copy(whole.data, src.data, src.bytes());
  const View padding = whole.part(src.count, whole.count - src.count);
  call.stream.zero(padding.data, padding.bytes());
}

std::uint64_t slice_of(const GroupShape& shape, const Operation& operation) {
  return (operation.count + shape.ranks - 1) / shape.ranks;
}

// Returns the sizes of the pieces into which scratch memory is divided for sum_cut().
Room::Sizes sizes_of_cut(const GroupShape& shape, const Operation& operation) {
  const std::uint64_t slice = slice_of(shape, operation);
  return sizes_of(shape, operation, Counts(shape.ranks, slice),
                  slice * shape.ranks * size_of(operation.dtype));
}

struct Slices {
  View whole;  // the data in n equal slices
  View mine;   // the slice of this rank, which holds the sum
};
Slices sum_cut(const FallbackContext& call) {
  const std::uint64_t slice = slice_of(call.shape, call.operation);
  const Room room(call, sizes_of_cut(call.shape, call.operation));
  const View whole = room.view(0, slice * call.ranks(), call.operation.dtype);
  const View mine = whole.part(slice * call.rank(), slice);
  cut(call, whole);
  sum_slices(call, whole, Counts(call.ranks(), slice), mine, room);
  return {whole, mine};
}

// Cuts the source into equal slices and sums this rank's slice, as sum_cut() does, but with a
// reduce_scatter of the backend.
Slices scatter_cut(const FallbackContext& call) {
  const Operation& operation = call.operation;
  const std::uint64_t slice = slice_of(call.shape, operation);
  const View whole = call.scratch(slice * call.ranks(), operation.dtype);
  const View mine = whole.part(slice * call.rank(), slice);
  cut(call, whole);
  call.submit({{ATOLL_REDUCE_SCATTER, whole, mine, slice, operation.dtype, operation.reduction}});
  return {whole, mine};
}

}  // namespace

void sum(const FallbackContext& call, const LocalSum& what) {
  if (what.dst.count == 0) return;
  if (!what.factors && what.divisor == 0) {
    return call.ops().reduce(call.stream, what.dst, what.parts, what.op, what.block);
  }
  call.stream.enqueue([what] {
    cpu::reduce(what.dst, what.parts,
                {.factors = what.factors,
                 .op = what.op,
                 .divisor = static_cast<int>(what.divisor),
                 .block = static_cast<std::size_t>(what.block)});
  });
}

std::uint64_t scratch_of_sum(const GroupShape& shape, const Operation& operation) {
  if (operation.kind == ATOLL_ALL_REDUCE) return Room::bytes(sizes_of_cut(shape, operation));
  return Room::bytes(sizes_of(shape, operation, Counts(shape.ranks, operation.count)));
}

void fallback_reduce_scatter(const FallbackContext& call) {
  const Operation& operation = call.operation;
  const Counts counts =
      operation.counts.empty() ? Counts(call.ranks(), operation.count) : operation.counts;
  sum_slices(call, operation.src, counts, operation.dst,
             Room(call, sizes_of(call.shape, operation, counts)));
}

void fallback_all_reduce(const FallbackContext& call) {
  const auto [whole, mine] = sum_cut(call);
  call.submit({{ATOLL_ALL_GATHER, mine, whole, mine.count, mine.dtype}});
  if (call.operation.count > 0) {
    call.stream.copy(call.operation.dst.data, whole.data, call.operation.src.bytes());
  }
}

void fallback_reduce(const FallbackContext& call) {
  const Operation& operation = call.operation;
  const bool scatters =
      call.backend_performs(ATOLL_REDUCE_SCATTER, operation.dtype, operation.reduction.op);
  const auto [whole, mine] = scatters ? scatter_cut(call) : sum_cut(call);
  const bool is_root = call.rank() == static_cast<std::uint64_t>(operation.peer);
  const View result = is_root ? whole : View{nullptr, 0, mine.dtype};
  const Operation gather{ATOLL_GATHER, mine,          result,        mine.count,
                         mine.dtype,   ReduceOp::sum, operation.peer};
  if (call.backend_performs(ATOLL_GATHER, mine.dtype, ReduceOp::sum)) {
    call.submit({gather});
  } else {
    fallback_gather(call.with(gather));
  }
  if (is_root && operation.count > 0) {
    call.stream.copy(operation.dst.data, whole.data, operation.src.bytes());
  }
}

}  // namespace atoll_v1::atoll
