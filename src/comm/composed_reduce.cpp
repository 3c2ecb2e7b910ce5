// Reductions built from moves and local sums.
//
// Vocabulary: n ranks; `count` is the length of one slice.
// Steps of reduce_scatter: all_to_all brings the n contributions to this rank's slice together, in
// rank order; one local pass sums them as an adjacent-pair tree. all_reduce first cuts the data
// into n slices of equal length (the last ones padded), and gathers the sums afterwards.
// Bytes sent by a rank: (n - 1) / n of the data; twice that for all_reduce.
#include "comm/communicator_impl.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {

void composed_reduce_scatter(Communicator::Impl& impl, const Request& request,
                             const std::shared_ptr<Work::State>& state, Stream& stream) {
  const auto ranks = static_cast<std::uint64_t>(impl.axis.size());
  const View parts = impl.scratch(request.count * ranks, request.dtype);
  impl.submit({{ATOLL_ALL_TO_ALL, request.src, parts, request.count, request.dtype}}, state,
              stream);
  impl.device.ops().reduce(stream, request.dst, parts, request.reduction.op);
}

void composed_all_reduce(Communicator::Impl& impl, const Request& request,
                         const std::shared_ptr<Work::State>& state, Stream& stream) {
  const auto ranks = static_cast<std::uint64_t>(impl.axis.size());
  const std::uint64_t slice = (request.count + ranks - 1) / ranks;
  const std::uint64_t padded = slice * ranks;
  const std::size_t element = size_of(request.dtype);
  const View scratch = impl.scratch(2 * padded, request.dtype);
  const View whole = scratch.part(0, padded), parts = scratch.part(padded, padded);
  stream.copy(whole.data, request.src.data, request.count * element);
  stream.zero(whole.part(request.count, 0).data, (padded - request.count) * element);
  impl.submit({{ATOLL_ALL_TO_ALL, whole, parts, slice, request.dtype}}, state, stream);
  const View mine = whole.part(slice * static_cast<std::uint64_t>(impl.axis.index), slice);
  impl.device.ops().reduce(stream, mine, parts, request.reduction.op);
  impl.submit({{ATOLL_ALL_GATHER, mine, whole, slice, request.dtype}}, state, stream);
  stream.copy(request.dst.data, whole.data, request.count * element);
}

}  // namespace atoll_v1::atoll
