// The collectives of Communicator: arguments are checked, and the backend takes the operation
// itself or core builds it.
#include <utility>

#include "atoll/communicator.hpp"
#include "comm/arguments.hpp"
#include "comm/composed.hpp"
#include "comm/two_level.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

using Composition = void (*)(const Call&);

// A backend of a GPU knows no factors (plugin.h): the data is multiplied in front of the operation.
// On all ranks, whatever their factors: where memory is, NCCL chooses its algorithm by.
bool scales_first(const Communicator::Impl& impl, const Request& request) {
  const bool whole = request.dtype == DType::i32 || request.dtype == DType::i64 ||
                     request.dtype == DType::u8;  // a factor of theirs is 1
  return request.reduction.has_factor && impl.device.kind() == DeviceKind::cuda && !whole;
}

void scale_source(Communicator::Impl& impl, Request& request, Stream& stream) {
  const double factor = std::exchange(request.reduction.factor, 1.0);
  if (request.src.count == 0) return;
  try {
    const View scaled = impl.scaled.take(impl.device, request.src.count, request.dtype);
    impl.device.ops().scale(stream, scaled, request.src, factor);
    request.src = scaled;
  } catch (const std::exception& error) {  // the other ranks wait for what does not come
    impl.world.fail(error.what());
    throw;
  }
}

// `composition` serves backends that do not take the operation; without one, all of them do.
Work start(Communicator::Impl& impl, Request request, Stream& stream,
           Composition composition = nullptr) {
  const bool in_levels = impl.two_level && impl.two_level->takes(impl, request);
  const bool composed =
      !in_levels && composition && !impl.takes(request.kind, request.dtype, request.reduction.op);
  const bool scales = scales_first(impl, request);
  if (!in_levels && !composed && !scales) return impl.perform(std::move(request), stream);
  auto state = impl.begin(stream);
  impl.tell_use(request, stream);
  if (scales) scale_source(impl, request, stream);
  const Call call{{impl, request}, state, stream};
  if (in_levels) {
    impl.two_level->run(call);
  } else if (composed) {
    composition(call);
  } else {
    impl.submit({request}, state, stream);
  }
  return impl.finish(std::move(state), stream);
}

// What belongs to `rank`, where the same number of elements does to each.
template <class AnyView>
const void* block(const AnyView& view, std::uint64_t count, int rank) {
  return view.part(count * static_cast<std::uint64_t>(rank), count).data;
}

std::vector<std::uint64_t> owned(std::span<const std::uint64_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

int Communicator::rank() const noexcept { return impl_->axis.index; }
int Communicator::size() const noexcept { return impl_->axis.size(); }
std::string_view Communicator::name() const noexcept { return impl_->name; }
std::string_view Communicator::backend() const noexcept { return impl_->plugin->name; }
const Device& Communicator::device() const noexcept { return impl_->device; }

std::uint64_t Communicator::scratch_bytes(Sum sum, std::uint64_t count, DType dtype) const {
  const auto kind = sum == Sum::all_reduce ? ATOLL_ALL_REDUCE : ATOLL_REDUCE_SCATTER;
  const Request request{kind, {}, {}, count, dtype};
  if (impl_->two_level && impl_->two_level->takes(*impl_, request)) {
    return impl_->two_level->scratch_bytes(request);
  }
  if (impl_->takes(kind, dtype, ReduceOp::sum)) return 0;
  return scratch_of_sum({*impl_, {kind, {}, {}, count, dtype}});
}

void Communicator::reserve_scratch(std::uint64_t bytes) { impl_->scratch(bytes, DType::u8); }

Work Communicator::all_gather(ConstView src, View dst, Stream& stream) {
  const Arguments arguments(*impl_, "all_gather");
  arguments.same_dtype(src, dst);
  arguments.multiple(dst.count, src.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst, block(dst, src.count, rank()));
  return start(*impl_, {ATOLL_ALL_GATHER, src, dst, src.count, src.dtype}, stream);
}

Work Communicator::reduce_scatter(ConstView src, View dst, Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_, "reduce_scatter");
  arguments.same_dtype(src, dst);
  arguments.multiple(src.count, dst.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(dst, src, block(src, dst.count, rank()));
  arguments.reduction(src.dtype, reduction);
  return start(*impl_, {ATOLL_REDUCE_SCATTER, src, dst, dst.count, src.dtype, reduction}, stream,
               composed_reduce_scatter);
}

Work Communicator::all_reduce(ConstView src, View dst, Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_, "all_reduce");
  arguments.same_dtype(src, dst);
  arguments.same_count(src, dst);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst, dst.data);
  arguments.reduction(src.dtype, reduction);
  return start(*impl_, {ATOLL_ALL_REDUCE, src, dst, src.count, src.dtype, reduction}, stream,
               composed_all_reduce);
}

Work Communicator::reduce(ConstView src, View dst, Reduction reduction, int root, Stream& stream) {
  const Arguments arguments(*impl_, "reduce");
  arguments.peer(root);
  arguments.buffer(src, "src");
  arguments.reduction(src.dtype, reduction);
  if (rank() == root) {
    arguments.same_dtype(src, dst);
    arguments.same_count(src, dst);
    arguments.buffer(dst, "dst");
    arguments.apart(src, dst, dst.data);
  }
  const View result = rank() == root ? dst : View{nullptr, 0, src.dtype};
  return start(*impl_, {ATOLL_REDUCE, src, result, src.count, src.dtype, reduction, root}, stream,
               composed_reduce);
}

Work Communicator::broadcast(View data, int root, Stream& stream) {
  const Arguments arguments(*impl_, "broadcast");
  arguments.peer(root);
  arguments.buffer(data, "data");
  return start(*impl_, {ATOLL_BROADCAST, data, data, data.count, data.dtype, ReduceOp::sum, root},
               stream);
}

Work Communicator::all_to_all(ConstView src, View dst, Stream& stream) {
  const Arguments arguments(*impl_, "all_to_all");
  const std::uint64_t count = src.count / static_cast<std::uint64_t>(size());
  arguments.same_dtype(src, dst);
  arguments.same_count(src, dst);
  arguments.multiple(src.count, count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst);
  return start(*impl_, {ATOLL_ALL_TO_ALL, src, dst, count, src.dtype}, stream);
}

Work Communicator::gather(ConstView src, View dst, int root, Stream& stream) {
  const Arguments arguments(*impl_, "gather");
  arguments.peer(root);
  arguments.buffer(src, "src");
  if (rank() == root) {
    arguments.same_dtype(src, dst);
    arguments.multiple(dst.count, src.count);
    arguments.buffer(dst, "dst");
    arguments.apart(src, dst, block(dst, src.count, root));
  }
  const View result = rank() == root ? dst : View{nullptr, 0, src.dtype};
  return start(*impl_, {ATOLL_GATHER, src, result, src.count, src.dtype, ReduceOp::sum, root},
               stream, composed_gather);
}

Work Communicator::scatter(ConstView src, View dst, int root, Stream& stream) {
  const Arguments arguments(*impl_, "scatter");
  arguments.peer(root);
  arguments.buffer(dst, "dst");
  if (rank() == root) {
    arguments.same_dtype(src, dst);
    arguments.multiple(src.count, dst.count);
    arguments.buffer(src, "src");
    arguments.apart(dst, src, block(src, dst.count, root));
  }
  const ConstView source = rank() == root ? src : ConstView{nullptr, 0, dst.dtype};
  return start(*impl_, {ATOLL_SCATTER, source, dst, dst.count, dst.dtype, ReduceOp::sum, root},
               stream, composed_scatter);
}

Work Communicator::all_gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                Stream& stream) {
  const Arguments arguments(*impl_, "all_gather_v");
  arguments.same_dtype(src, dst);
  const std::uint64_t first = arguments.counts(counts, dst.count, src.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst, dst.part(first, src.count).data);
  return start(
      *impl_, {ATOLL_ALL_GATHER_V, src, dst, dst.count, src.dtype, ReduceOp::sum, 0, owned(counts)},
      stream, composed_all_gather_v);
}

Work Communicator::reduce_scatter_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                    Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_, "reduce_scatter_v");
  arguments.same_dtype(src, dst);
  const std::uint64_t first = arguments.counts(counts, src.count, dst.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(dst, src, src.part(first, dst.count).data);
  arguments.reduction(src.dtype, reduction);
  return start(
      *impl_, {ATOLL_REDUCE_SCATTER_V, src, dst, src.count, src.dtype, reduction, 0, owned(counts)},
      stream, composed_reduce_scatter_v);
}

Work Communicator::send(ConstView src, int peer, Stream& stream) {
  const Arguments arguments(*impl_, "send");
  arguments.peer(peer);
  arguments.buffer(src, "src");
  return start(*impl_, {ATOLL_SEND, src, {}, src.count, src.dtype, ReduceOp::sum, peer}, stream);
}

Work Communicator::recv(View dst, int peer, Stream& stream) {
  const Arguments arguments(*impl_, "recv");
  arguments.peer(peer);
  arguments.buffer(dst, "dst");
  return start(*impl_, {ATOLL_RECV, {}, dst, dst.count, dst.dtype, ReduceOp::sum, peer}, stream);
}

Work Communicator::barrier(Stream& stream) {
  return start(*impl_, {ATOLL_BARRIER, {}, {}, 0, DType::u8}, stream);
}

Work Communicator::group(std::span<const SendRecv> operations, Stream& stream) {
  const Arguments arguments(*impl_, "group");
  std::vector<Request> requests;
  for (const auto& [kind, data, peer] : operations) {
    arguments.peer(peer);
    arguments.buffer(data, "data");
    const bool sends = kind == SendRecv::Kind::send;
    requests.push_back(
        {sends ? ATOLL_SEND : ATOLL_RECV, data, data, data.count, data.dtype, ReduceOp::sum, peer});
  }
  auto state = impl_->begin(stream);
  for (const Request& request : requests) impl_->tell_use(request, stream);
  if (!requests.empty()) impl_->submit(std::move(requests), state, stream);
  return impl_->finish(std::move(state), stream);
}

}  // namespace atoll_v1::atoll
