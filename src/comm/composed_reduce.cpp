// Reductions built from moves and local sums.
//
// Vocabulary: n ranks; a slice is what one rank sums; parts are the n contributions to it, in rank
// order; `whole` is the data cut into n slices of equal length, the last ones padded.
// Steps of reduce_scatter: all_to_all (messages, where counts differ) brings the parts of this
// rank's slice together; one local pass sums them as an adjacent-pair tree. all_reduce gathers the
// sums afterwards on all ranks, reduce on the root. Where the axis has several ranks on each of
// several hosts, the parts are summed level by level instead (composed_levels.cpp).
// Bytes sent by a rank: (n - 1) / n of the data; twice that for all_reduce.
// Factors: f32 and f64 are multiplied before they go out, which is the type that sums them. The
// 16-bit types would be rounded there, so the summing pass applies the factors of all ranks, which
// told them each other (composed_agreement.cpp).
#include <fmt/core.h>

#include <array>
#include <numeric>

#include "comm/composed.hpp"
#include "device/host/kernels.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

using Counts = std::vector<std::uint64_t>;

// Pieces of the communicator's scratch memory, each aligned for anything.
class Room {
 public:
  using Sizes = std::array<std::uint64_t, 4>;  // bytes

  static std::uint64_t bytes(const Sizes& sizes) {
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum += padded(size);
    return sum;
  }
  Room(Communicator::Impl& impl, const Sizes& sizes) {
    auto* next = static_cast<std::byte*>(impl.scratch(bytes(sizes), DType::u8).data);
    for (std::size_t i = 0; i < sizes.size(); next += padded(sizes[i++])) pieces_[i] = next;
  }
  View view(std::size_t piece, std::uint64_t count, DType dtype) const {
    return {pieces_[piece], count, dtype};
  }

 private:
  static std::uint64_t padded(std::uint64_t size) { return (size + 63) / 64 * 64; }

  std::array<std::byte*, 4> pieces_{};
};

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Whether the summing pass applies the factors.
bool scales_at_sum(const Call& call) {
  const ReduceOp op = call.request.reduction.op;
  return is_16_bit(call.request.dtype) && (op == ReduceOp::sum || op == ReduceOp::avg);
}

bool scales_here(const Asked& asked) {
  return asked.request.reduction.factor != 1.0 && !is_16_bit(asked.request.dtype);
}

// The scratch of sum_slices(), behind `first` bytes for its caller.
Room::Sizes sizes_of(const Asked& asked, const Counts& counts, std::uint64_t first = 0) {
  const std::uint64_t agreement = bytes_of_agreement(asked);
  if (sums_by_levels(asked)) return {first, agreement, scratch_of_levels(asked, counts), 0};
  const std::uint64_t element = size_of(asked.request.dtype);
  const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  return {first, agreement, counts[asked.rank()] * asked.ranks() * element,
          scales_here(asked) ? all * element : 0};
}

// The sum over all ranks of slices of src, slice r as long as counts[r]: this rank's, to dst.
void sum_slices(const Call& call, ConstView src, const Counts& counts, View dst, const Room& room) {
  const double* factors = agree(call, room.view(1, bytes_of_agreement(call), DType::u8));
  if (sums_by_levels(call)) {
    return sum_by_levels(call, src, counts, dst,
                         room.view(2, scratch_of_levels(call, counts), DType::u8));
  }
  const View parts = room.view(2, dst.count * call.ranks(), dst.dtype);
  if (scales_here(call) && src.count > 0) {
    const View scaled = room.view(3, src.count, src.dtype);
    call.impl.device.ops().scale(call.stream, scaled, src, call.request.reduction.factor);
    src = scaled;
  }
  if (call.request.counts.empty()) {
    call.submit({{ATOLL_ALL_TO_ALL, src, parts, dst.count, dst.dtype}});
  } else {
    exchange_v(call, src, parts);
  }
  sum(call, {dst, parts, call.ranks(), call.request.reduction.op, call.impl.block,
             scales_at_sum(call) ? factors : nullptr});
}

// src in n equal slices, padded with zeros.
void cut(const Call& call, View whole) {
  const ConstView src = call.request.src;
  if (src.count == 0) return;
  call.stream.copy(whole.data, src.data, src.bytes());
  const View padding = whole.part(src.count, whole.count - src.count);
  call.stream.zero(padding.data, padding.bytes());
}

std::uint64_t slice_of(const Asked& asked) {
  return (asked.request.count + asked.ranks() - 1) / asked.ranks();
}

// Of sum_cut().
Room::Sizes sizes_of_cut(const Asked& asked) {
  const std::uint64_t slice = slice_of(asked);
  return sizes_of(asked, Counts(asked.ranks(), slice),
                  slice * asked.ranks() * size_of(asked.request.dtype));
}

// The sum of this rank's slice of src, at its place in the slices of all.
struct Slices {
  View whole;
  View mine;
};
Slices sum_cut(const Call& call) {
  const DType dtype = call.request.dtype;
  const Counts counts(call.ranks(), slice_of(call));
  const std::uint64_t padded = slice_of(call) * call.ranks();
  const Room room(call.impl, sizes_of_cut(call));
  const View whole = room.view(0, padded, dtype);
  const View mine = whole.part(slice_of(call) * call.rank(), slice_of(call));
  cut(call, whole);
  sum_slices(call, whole, counts, mine, room);
  return {whole, mine};
}

// The same by a backend that sums itself.
Slices scatter_cut(const Call& call) {
  const DType dtype = call.request.dtype;
  const std::uint64_t slice = slice_of(call);
  const View whole = call.impl.scratch(slice * call.ranks(), dtype);
  const View mine = whole.part(slice * call.rank(), slice);
  cut(call, whole);
  call.submit({{ATOLL_REDUCE_SCATTER, whole, mine, slice, dtype, call.request.reduction}});
  return {whole, mine};
}

}  // namespace

void sum(const Call& call, const LocalSum& what) {
  if (what.dst.count == 0) return;
  if (!what.factors && what.divisor == 0) {
    return call.impl.device.ops().reduce(call.stream, what.dst, what.parts, what.op, what.block);
  }
  call.stream.enqueue([what] {
    const std::uint64_t count = what.dst.count;
    std::vector<const void*> from;
    for (std::uint64_t r = 0; r < what.ranks; ++r) {
      from.push_back(what.parts.part(r * count, count).data);
    }
    void* const to = what.dst.data;
    host::reduce_into({{&to, 1},
                       from,
                       what.factors,
                       count,
                       what.dst.dtype,
                       what.op,
                       static_cast<int>(what.divisor > 0 ? what.divisor : what.ranks),
                       host::Stores::cached,
                       static_cast<std::size_t>(what.block)});
  });
}

std::uint64_t scratch_of_sum(const Asked& asked) {
  if (asked.request.kind == ATOLL_ALL_REDUCE) return Room::bytes(sizes_of_cut(asked));
  return Room::bytes(sizes_of(asked, Counts(asked.ranks(), asked.request.count)));
}

void composed_reduce_scatter(const Call& call) {
  const Request& request = call.request;
  const Counts counts(call.ranks(), request.count);
  sum_slices(call, request.src, counts, request.dst, Room(call.impl, sizes_of(call, counts)));
}

void composed_reduce_scatter_v(const Call& call) {
  const Request& request = call.request;
  sum_slices(call, request.src, request.counts, request.dst,
             Room(call.impl, sizes_of(call, request.counts)));
}

void composed_all_reduce(const Call& call) {
  const auto [whole, mine] = sum_cut(call);
  call.submit({{ATOLL_ALL_GATHER, mine, whole, mine.count, mine.dtype}});
  if (call.request.count > 0) {
    call.stream.copy(call.request.dst.data, whole.data, call.request.src.bytes());
  }
}

void composed_reduce(const Call& call) {
  const Request& request = call.request;
  const bool scatters = call.impl.takes(ATOLL_REDUCE_SCATTER, request.dtype, request.reduction.op);
  const auto [whole, mine] = scatters ? scatter_cut(call) : sum_cut(call);
  const bool is_root = call.impl.axis.index == request.peer;
  const Request gather{ATOLL_GATHER, mine,       is_root ? whole : View{nullptr, 0, mine.dtype},
                       mine.count,   mine.dtype, ReduceOp::sum,
                       request.peer};
  if (call.impl.takes(ATOLL_GATHER, mine.dtype, ReduceOp::sum)) {
    call.submit({gather});
  } else {
    composed_gather({{call.impl, gather}, call.state, call.stream, call.called});
  }
  if (is_root && request.count > 0) {
    call.stream.copy(request.dst.data, whole.data, request.src.bytes());
  }
}

}  // namespace atoll_v1::atoll
