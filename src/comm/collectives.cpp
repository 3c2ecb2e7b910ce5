// The collectives of Communicator: arguments are checked here, before anything is sent.
#include <fmt/core.h>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {
namespace {

void require(bool fine, const Communicator::Impl& impl, std::string_view operation,
             std::string_view rule) {
  if (fine) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("rank {}: {} on communicator {}: {}", impl.world.rank(), operation,
                          impl.name, rule));
}

void require_same_dtype(ConstView src, View dst, const Communicator::Impl& impl,
                        std::string_view operation) {
  require(src.dtype == dst.dtype, impl, operation,
          fmt::format("src is {} and dst is {}", name(src.dtype), name(dst.dtype)));
}

void require_peer(int peer, const Communicator::Impl& impl, std::string_view operation) {
  require(peer >= 0 && peer < impl.axis.size(), impl, operation,
          fmt::format("no rank {} among {}", peer, impl.axis.size()));
}

// `whole` must be `ranks` times `part`.
void require_multiple(std::uint64_t whole, std::uint64_t part, const Communicator::Impl& impl,
                      std::string_view operation) {
  const auto ranks = static_cast<std::uint64_t>(impl.axis.size());
  require(whole == part * ranks, impl, operation,
          fmt::format("{} elements are not {} ranks x {}", whole, ranks, part));
}

Work start(Communicator::Impl& impl, const Request& request, Stream& stream) {
  auto state = impl.begin(stream);
  impl.submit({request}, state, stream);
  return impl.finish(std::move(state), stream);
}

}  // namespace

int Communicator::rank() const noexcept { return impl_->axis.index; }
int Communicator::size() const noexcept { return impl_->axis.size(); }
std::string_view Communicator::name() const noexcept { return impl_->name; }
std::string_view Communicator::backend() const noexcept { return impl_->plugin->name; }
const Device& Communicator::device() const noexcept { return impl_->device; }

Work Communicator::all_gather(ConstView src, View dst, Stream& stream) {
  require_same_dtype(src, dst, *impl_, "all_gather");
  require_multiple(dst.count, src.count, *impl_, "all_gather");
  return start(*impl_, {ATOLL_ALL_GATHER, src, dst, src.count, src.dtype}, stream);
}

Work Communicator::reduce_scatter(ConstView src, View dst, Reduction reduction, Stream& stream) {
  require_same_dtype(src, dst, *impl_, "reduce_scatter");
  require_multiple(src.count, dst.count, *impl_, "reduce_scatter");
  const Request request{ATOLL_REDUCE_SCATTER, src, dst, dst.count, src.dtype, reduction};
  if (impl_->reduces(request.kind, src.dtype, reduction.op)) return start(*impl_, request, stream);
  auto state = impl_->begin(stream);
  composed_reduce_scatter(*impl_, request, state, stream);
  return impl_->finish(std::move(state), stream);
}

Work Communicator::all_reduce(ConstView src, View dst, Reduction reduction, Stream& stream) {
  require_same_dtype(src, dst, *impl_, "all_reduce");
  require(src.count == dst.count, *impl_, "all_reduce",
          fmt::format("src has {} elements and dst {}", src.count, dst.count));
  const Request request{ATOLL_ALL_REDUCE, src, dst, src.count, src.dtype, reduction};
  if (impl_->reduces(request.kind, src.dtype, reduction.op)) return start(*impl_, request, stream);
  auto state = impl_->begin(stream);
  composed_all_reduce(*impl_, request, state, stream);
  return impl_->finish(std::move(state), stream);
}

Work Communicator::broadcast(View data, int root, Stream& stream) {
  require_peer(root, *impl_, "broadcast");
  return start(*impl_, {ATOLL_BROADCAST, data, data, data.count, data.dtype, ReduceOp::sum, root},
               stream);
}

Work Communicator::all_to_all(ConstView src, View dst, Stream& stream) {
  require_same_dtype(src, dst, *impl_, "all_to_all");
  const auto ranks = static_cast<std::uint64_t>(size());
  require(src.count == dst.count, *impl_, "all_to_all",
          fmt::format("src has {} elements and dst {}", src.count, dst.count));
  require_multiple(src.count, src.count / ranks, *impl_, "all_to_all");
  return start(*impl_, {ATOLL_ALL_TO_ALL, src, dst, src.count / ranks, src.dtype}, stream);
}

Work Communicator::send(ConstView src, int peer, Stream& stream) {
  require_peer(peer, *impl_, "send");
  return start(*impl_, {ATOLL_SEND, src, {}, src.count, src.dtype, ReduceOp::sum, peer}, stream);
}

Work Communicator::recv(View dst, int peer, Stream& stream) {
  require_peer(peer, *impl_, "recv");
  return start(*impl_, {ATOLL_RECV, {}, dst, dst.count, dst.dtype, ReduceOp::sum, peer}, stream);
}

Work Communicator::barrier(Stream& stream) {
  return start(*impl_, {ATOLL_BARRIER, {}, {}, 0, DType::u8}, stream);
}

Work Communicator::group(std::span<const SendRecv> operations, Stream& stream) {
  std::vector<Request> requests;
  for (const auto& [kind, data, peer] : operations) {
    require_peer(peer, *impl_, "group");
    const bool sends = kind == SendRecv::Kind::send;
    requests.push_back(
        {sends ? ATOLL_SEND : ATOLL_RECV, data, data, data.count, data.dtype, ReduceOp::sum, peer});
  }
  auto state = impl_->begin(stream);
  if (!requests.empty()) impl_->submit(std::move(requests), state, stream);
  return impl_->finish(std::move(state), stream);
}

namespace {

[[noreturn]] void not_yet(std::string_view operation) {
  throw Error(ErrorCode::unsupported, fmt::format("{} is not there yet", operation));
}

}  // namespace

Work Communicator::reduce(ConstView, View, Reduction, int, Stream&) { not_yet("reduce"); }
Work Communicator::gather(ConstView, View, int, Stream&) { not_yet("gather"); }
Work Communicator::scatter(ConstView, View, int, Stream&) { not_yet("scatter"); }
Work Communicator::all_gather_v(ConstView, View, std::span<const std::uint64_t>, Stream&) {
  not_yet("all_gather_v");
}
Work Communicator::reduce_scatter_v(ConstView, View, std::span<const std::uint64_t>, Reduction,
                                    Stream&) {
  not_yet("reduce_scatter_v");
}
std::optional<Communicator> Communicator::split(std::optional<int>, int, std::string) const {
  not_yet("split");
}

}  // namespace atoll_v1::atoll
