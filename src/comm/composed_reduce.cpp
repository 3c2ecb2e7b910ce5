// Reductions built from moves and local sums.
//
// Vocabulary: n ranks; a slice is what one rank sums; parts are the n contributions to it, in rank
// order; `whole` is the data cut into n slices of equal length, the last ones padded.
// Steps of reduce_scatter: all_to_all (messages, where counts differ) brings the parts of this
// rank's slice together; one local pass sums them as an adjacent-pair tree. all_reduce gathers the
// sums afterwards on all ranks, reduce on the root.
// Bytes sent by a rank: (n - 1) / n of the data; twice that for all_reduce.
// Factors: f32 and f64 are multiplied before they go out, which is the type that sums them. The
// 16-bit types would be rounded there, so their factors travel beside them, 8 bytes a rank, and the
// summing pass applies them; since factors may differ by rank, all ranks take part in that always.
#include <fmt/core.h>

#include <array>

#include "comm/composed.hpp"
#include "device/host/kernels.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

// Up to three pieces of the communicator's scratch memory, each aligned for anything.
class Room {
 public:
  Room(Communicator::Impl& impl, std::array<std::uint64_t, 3> bytes) {
    constexpr std::uint64_t line = 64;
    for (std::uint64_t& piece : bytes) piece = (piece + line - 1) / line * line;
    const View all = impl.scratch(bytes[0] + bytes[1] + bytes[2] + line, DType::u8);
    auto* next = static_cast<std::byte*>(all.data);
    for (std::size_t i = 0; i < bytes.size(); next += bytes[i++]) pieces_[i] = next;
  }
  View view(std::size_t piece, std::uint64_t count, DType dtype) const {
    return {pieces_[piece], count, dtype};
  }

 private:
  std::array<std::byte*, 3> pieces_{};
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

// src as it goes out, for the reductions that send it from where it is.
ConstView outgoing(const Call& call, View room) {
  const ConstView src = call.request.src;
  if (!scales_here(call) || src.count == 0) return src;
  scale(call, room, src);
  return room;
}

void sum(const Call& call, View dst, View parts, const double* factors) {
  if (dst.count == 0) return;
  const ReduceOp op = call.request.reduction.op;
  const int block = call.impl.block;
  if (!factors) return call.impl.device.ops().reduce(call.stream, dst, parts, op, block);
  call.stream.enqueue([=, ranks = call.ranks()] {
    std::vector<const void*> from;
    for (std::uint64_t r = 0; r < ranks; ++r)
      from.push_back(parts.part(r * dst.count, dst.count).data);
    void* const to = dst.data;
    host::reduce_into({{&to, 1},
                       from,
                       factors,
                       dst.count,
                       dst.dtype,
                       op,
                       static_cast<int>(ranks),
                       host::Stores::cached,
                       static_cast<std::size_t>(block)});
  });
}

// src in n equal slices, padded with zeros, as it goes out.
void cut(const Call& call, View whole) {
  const ConstView src = call.request.src;
  if (src.count == 0) return;
  if (scales_here(call)) {
    scale(call, whole.part(0, src.count), src);
  } else {
    call.stream.copy(whole.data, src.data, src.bytes());
  }
  const View padding = whole.part(src.count, whole.count - src.count);
  call.stream.zero(padding.data, padding.bytes());
}

// The sum of this rank's slice of src, at its place in the slices of all.
struct Slices {
  View whole;
  View mine;
};
Slices sum_slices(const Call& call) {
  require_scalable(call);
  const DType dtype = call.request.dtype;
  const std::uint64_t slice = (call.request.count + call.ranks() - 1) / call.ranks();
  const std::uint64_t padded = slice * call.ranks();
  const Room room(call.impl,
                  {factor_bytes(call), padded * size_of(dtype), padded * size_of(dtype)});
  const View whole = room.view(1, padded, dtype), parts = room.view(2, padded, dtype);
  const double* factors = exchange_factors(call, room.view(0, call.ranks(), DType::f64));
  cut(call, whole);
  call.submit({{ATOLL_ALL_TO_ALL, whole, parts, slice, dtype}});
  const View mine = whole.part(slice * call.rank(), slice);
  sum(call, mine, parts, factors);
  return {whole, mine};
}

// The same by a backend that sums itself.
Slices scatter_slices(const Call& call) {
  const DType dtype = call.request.dtype;
  const std::uint64_t slice = (call.request.count + call.ranks() - 1) / call.ranks();
  const View whole = call.impl.scratch(slice * call.ranks(), dtype);
  const View mine = whole.part(slice * call.rank(), slice);
  if (call.request.count > 0) {
    const ConstView src = call.request.src;
    call.stream.copy(whole.data, src.data, src.bytes());
    const View padding = whole.part(src.count, whole.count - src.count);
    call.stream.zero(padding.data, padding.bytes());
  }
  call.submit({{ATOLL_REDUCE_SCATTER, whole, mine, slice, dtype, call.request.reduction}});
  return {whole, mine};
}

}  // namespace

void composed_reduce_scatter(const Call& call) {
  require_scalable(call);
  const Request& request = call.request;
  const std::uint64_t bytes = request.src.bytes();
  const Room room(call.impl, {factor_bytes(call), bytes, scales_here(call) ? bytes : 0});
  const View parts = room.view(1, request.src.count, request.dtype);
  const double* factors = exchange_factors(call, room.view(0, call.ranks(), DType::f64));
  const ConstView src = outgoing(call, room.view(2, request.src.count, request.dtype));
  call.submit({{ATOLL_ALL_TO_ALL, src, parts, request.count, request.dtype}});
  sum(call, request.dst, parts, factors);
}

void composed_reduce_scatter_v(const Call& call) {
  require_scalable(call);
  const Request& request = call.request;
  const std::uint64_t count = request.dst.count * call.ranks();
  const Room room(call.impl, {factor_bytes(call), count * size_of(request.dtype),
                              scales_here(call) ? request.src.bytes() : 0});
  const View parts = room.view(1, count, request.dtype);
  const double* factors = exchange_factors(call, room.view(0, call.ranks(), DType::f64));
  exchange_v(call, outgoing(call, room.view(2, request.src.count, request.dtype)), parts);
  sum(call, request.dst, parts, factors);
}

void composed_all_reduce(const Call& call) {
  const auto [whole, mine] = sum_slices(call);
  call.submit({{ATOLL_ALL_GATHER, mine, whole, mine.count, mine.dtype}});
  if (call.request.count > 0) {
    call.stream.copy(call.request.dst.data, whole.data, call.request.src.bytes());
  }
}

void composed_reduce(const Call& call) {
  const Request& request = call.request;
  const bool scatters = call.impl.takes(ATOLL_REDUCE_SCATTER, request.dtype, request.reduction.op);
  const auto [whole, mine] = scatters ? scatter_slices(call) : sum_slices(call);
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
