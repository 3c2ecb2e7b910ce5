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
// 16-bit types would be rounded there, so their factors travel beside them, 8 bytes a rank, and the
// summing pass applies them; since factors may differ by rank, all ranks take part in that always.
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
  Room(Communicator::Impl& impl, std::array<std::uint64_t, 4> bytes) {
    constexpr std::uint64_t line = 64;
    std::uint64_t all = line;
    for (std::uint64_t& piece : bytes) all += piece = (piece + line - 1) / line * line;
    auto* next = static_cast<std::byte*>(impl.scratch(all, DType::u8).data);
    for (std::size_t i = 0; i < bytes.size(); next += bytes[i++]) pieces_[i] = next;
  }
  View view(std::size_t piece, std::uint64_t count, DType dtype) const {
    return {pieces_[piece], count, dtype};
  }

 private:
  std::array<std::byte*, 4> pieces_{};
};

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Whether the factors of this reduction travel.
bool factors_travel(const Call& call) {
  const ReduceOp op = call.request.reduction.op;
  return is_16_bit(call.request.dtype) && (op == ReduceOp::sum || op == ReduceOp::avg) &&
         call.impl.device.kind() == DeviceKind::host;
}

// What multiplies here are the kernels of the host.
void require_scalable(const Call& call) {
  if (call.request.reduction.factor == 1.0 || call.impl.device.kind() == DeviceKind::host) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("rank {}: communicator {}: a factor needs a backend that takes this "
                          "reduction itself on {} memory",
                          call.impl.world.rank(), call.impl.name, call.impl.device.name()));
}

std::uint64_t factor_bytes(const Call& call) {
  return factors_travel(call) ? call.ranks() * sizeof(double) : 0;
}

// Factors by rank, at `room`; NULL when the parts come multiplied already.
const double* exchange_factors(const Call& call, View room) {
  if (!factors_travel(call)) return nullptr;
  const View own = room.part(call.rank(), 1);
  call.stream.enqueue(
      [at = own.as<double>(), factor = call.request.reduction.factor] { *at = factor; });
  call.submit({{ATOLL_ALL_GATHER, own, room, 1, DType::f64}});
  return room.as<double>();
}

bool scales_here(const Call& call) {
  return call.request.reduction.factor != 1.0 && !is_16_bit(call.request.dtype);
}

// The scratch of sum_slices(), behind `first` bytes for its caller.
Room room_for(const Call& call, const Counts& counts, std::uint64_t first = 0) {
  if (sums_by_levels(call)) {
    return Room(call.impl, {first, scratch_of_levels(call, counts), 0, 0});
  }
  const std::uint64_t element = size_of(call.request.dtype);
  const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  return Room(call.impl, {first, factor_bytes(call), counts[call.rank()] * call.ranks() * element,
                          scales_here(call) ? all * element : 0});
}

// The sum over all ranks of slices of src, slice r as long as counts[r]: this rank's, to dst.
void sum_slices(const Call& call, ConstView src, const Counts& counts, View dst, const Room& room) {
  require_scalable(call);
  if (sums_by_levels(call)) {
    const View scratch = room.view(1, scratch_of_levels(call, counts), DType::u8);
    return sum_by_levels(call, src, counts, dst, scratch);
  }
  const double* factors = exchange_factors(call, room.view(1, call.ranks(), DType::f64));
  const View parts = room.view(2, dst.count * call.ranks(), dst.dtype);
  if (scales_here(call) && src.count > 0) {
    const View scaled = room.view(3, src.count, src.dtype);
    scale(call, scaled, src);
    src = scaled;
  }
  if (call.request.counts.empty()) {
    call.submit({{ATOLL_ALL_TO_ALL, src, parts, dst.count, dst.dtype}});
  } else {
    exchange_v(call, src, parts);
  }
  sum(call, {dst, parts, call.ranks(), call.request.reduction.op, call.impl.block, factors});
}

// src in n equal slices, padded with zeros.
void cut(const Call& call, View whole) {
  const ConstView src = call.request.src;
  if (src.count == 0) return;
  call.stream.copy(whole.data, src.data, src.bytes());
  const View padding = whole.part(src.count, whole.count - src.count);
  call.stream.zero(padding.data, padding.bytes());
}

std::uint64_t slice_of(const Call& call) {
  return (call.request.count + call.ranks() - 1) / call.ranks();
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
  const Room room = room_for(call, counts, padded * size_of(dtype));
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

void scale(const Call& call, View dst, ConstView src) {
  call.stream.enqueue([dst, src, factor = call.request.reduction.factor] {
    void* const to = dst.data;
    const void* const from = src.data;
    host::reduce_into({{&to, 1},
                       {&from, 1},
                       &factor,
                       src.count,
                       src.dtype,
                       ReduceOp::sum,
                       1,
                       host::Stores::cached});
  });
}

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

void composed_reduce_scatter(const Call& call) {
  const Request& request = call.request;
  const Counts counts(call.ranks(), request.count);
  sum_slices(call, request.src, counts, request.dst, room_for(call, counts));
}

void composed_reduce_scatter_v(const Call& call) {
  const Request& request = call.request;
  sum_slices(call, request.src, request.counts, request.dst, room_for(call, request.counts));
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
    composed_gather({call.impl, gather, call.state, call.stream, call.called});
  }
  if (is_root && request.count > 0) {
    call.stream.copy(request.dst.data, whole.data, request.src.bytes());
  }
}

}  // namespace atoll_v1::atoll
