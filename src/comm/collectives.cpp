// The collectives of Communicator. Each function checks its arguments. Then the backend performs
// the operation, or the library builds it from other operations: in two levels (inside and across
// hosts) if that is faster, or as a fallback if the backend lacks it.
#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "comm/arguments.hpp"
#include "comm/communicator_impl.hpp"
#include "core/errors.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

using Fallback = void (*)(const FallbackContext&);
using Whole = Arguments::Whole;

// Returns true when a GPU kernel must multiply the source by the call's factor before the
// operation, because plugin.h supports factors only for CPU memory. The kernel also runs for a
// factor of 1: NCCL's choice of algorithm depends on the memory that holds the source and must be
// equal on all ranks.
bool scales_first(const BackendCommunicator& group, const Operation& operation) {
  return operation.reduction.has_factor && group.device().kind() == DeviceKind::cuda &&
         !is_integer(operation.dtype);
}

void scale_source(BackendCommunicator& group, Operation& operation, Stream& stream) {
  const double factor = std::exchange(operation.reduction.factor, 1.0);
  if (operation.src.count == 0) return;
  try {
    const View scaled = group.scaled_source().take(operation.src.count, operation.dtype);
    group.device().ops().scale(stream, scaled, operation.src, factor);
    operation.src = scaled;
  } catch (const std::exception& error) {
    // Fails all ranks, because the others would wait for this rank.
    group.fail_all(Error(ErrorCode::internal, text_of(error)));
    throw;
  }
}

// The op that plugin.h defines for truth values in place of a sum or product.
ReduceOp logical(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

// How an operation is performed.
enum class Way {
  backend,
  scaled,  // by the backend, after a kernel has multiplied the source by a factor
  levels,
  fallback
};

// `fallback` builds an operation that the backend lacks; it is null if every backend supports the
// operation.
Way way_of(const Communicator::Impl& impl, const Operation& operation, Fallback fallback) {
  if (impl.two_level && impl.two_level->takes(operation)) return Way::levels;
  const Reduction& reduction = operation.reduction;
  if (fallback &&
      !impl.group->supports(operation.kind, operation.dtype, reduction.op, reduction.native)) {
    return Way::fallback;
  }
  return scales_first(*impl.group, operation) ? Way::scaled : Way::backend;
}

// Enqueues an operation as a part of a call that has begun.
void enqueue(Communicator::Impl& impl, Operation operation, Fallback fallback,
             const std::shared_ptr<Work::State>& state, Stream& stream) {
  BackendCommunicator& group = *impl.group;
  const Way way = way_of(impl, operation, fallback);
  group.declare_use(operation, stream);
  if (scales_first(group, operation)) scale_source(group, operation, stream);
  const FallbackContext call(group, operation, state, stream,
                             impl.two_level ? impl.two_level->intra() : nullptr);
  if (way == Way::levels) return impl.two_level->run(call);
  if (way == Way::fallback) return fallback(call);
  group.submit({operation}, state, stream);
}

// The calls that a thread makes inside Communicator::group().
class Grouping {
 public:
  Grouping(Communicator::Impl& impl, Stream& stream)
      : impl_(impl), stream_(stream), outer_(std::exchange(innermost, this)) {
    ++impl_.group->groupings();
  }
  Grouping(const Grouping&) = delete;
  Grouping& operator=(const Grouping&) = delete;
  ~Grouping() {
    --impl_.group->groupings();
    innermost = outer_;
  }

  // Returns this thread's grouping for the communicator, or null.
  static Grouping* of(const Communicator::Impl& impl) noexcept {
    if (impl.group->groupings() == 0) return nullptr;
    Grouping* one = innermost;
    while (one != nullptr && one->impl_.group != impl.group) one = one->outer_;
    return one;
  }

  Work add(Operation operation, Fallback fallback, const Stream& stream) {
    check(stream);
    if (operation.is_message())
      messages_.push_back(std::move(operation));
    else
      collectives_.push_back({std::move(operation), fallback});
    return {};
  }
  // Adds the messages of a collective that consists of messages.
  Work add(std::vector<Operation> parts, const Stream& stream) {
    check(stream);
    std::ranges::move(parts, std::back_inserter(parts_));
    return {};
  }

  Work start() {
    const bool has_collectives = !collectives_.empty() || !parts_.empty();
    // Messages with tags are independent of collectives.
    BackendCommunicator& group = impl_.tags && !has_collectives ? *impl_.tags : *impl_.group;
    if (!impl_.tags) check_own_messages();
    const std::lock_guard calling(group.calling());
    auto state = group.begin(stream_);
    submit(impl_.tags ? *impl_.tags : group, messages_, state);
    submit(group, parts_, state);
    std::vector<Operation> batch;  // neighbours that the backend performs
    for (auto& [operation, fallback] : collectives_) {
      if (way_of(impl_, operation, fallback) == Way::backend) {
        batch.push_back(std::move(operation));
        continue;
      }
      submit(group, batch, state);
      enqueue(impl_, std::move(operation), fallback, state, stream_);
    }
    submit(group, batch, state);
    return group.finish(std::move(state), stream_);
  }

 private:
  struct Collective {
    Operation operation;
    Fallback fallback;
  };

  void check(const Stream& stream) const {
    require(
        &stream == &stream_,
        "communicator {}: a call inside group() uses the stream {}, but group() got {}: use one "
        "stream",
        impl_.group->name(), stream.name(), stream_.name());
  }
  void submit(BackendCommunicator& to, std::vector<Operation>& operations,
              const std::shared_ptr<Work::State>& state) {
    for (const Operation& one : operations) to.declare_use(one, stream_);
    if (!operations.empty()) to.submit(std::exchange(operations, {}), state, stream_);
  }
  void check_own_messages() const {
    int sends = 0, receives = 0;
    for (const Operation& one : messages_) {
      if (one.peer == impl_.group->axis().index) ++(one.kind == ATOLL_SEND ? sends : receives);
    }
    Arguments(*impl_.group, "group").own_messages(sends, receives);
  }

  static inline thread_local Grouping* innermost = nullptr;

  Communicator::Impl& impl_;
  Stream& stream_;
  Grouping* outer_;
  std::vector<Operation> messages_, parts_;
  std::vector<Collective> collectives_;
};

// Starts an operation after its arguments have been checked.
Work start(Communicator::Impl& impl, Operation operation, Stream& stream,
           Fallback fallback = nullptr) {
  operation.timeout = impl.timeout;
  if (operation.dtype == DType::boolean) operation.reduction.op = logical(operation.reduction.op);
  if (Grouping* const grouping = Grouping::of(impl))
    return grouping->add(std::move(operation), fallback, stream);
  BackendCommunicator& group = *impl.group;
  const std::lock_guard calling(group.calling());
  if (way_of(impl, operation, fallback) == Way::backend)
    return group.submit(std::move(operation), stream);
  auto state = group.begin(stream);
  enqueue(impl, std::move(operation), fallback, state, stream);
  return group.finish(std::move(state), stream);
}

// Starts one send or receive.
Work start_message(Communicator::Impl& impl, Operation operation, int tag, Stream& stream) {
  operation.tag = tag;
  if (!impl.tags || Grouping::of(impl)) return start(impl, std::move(operation), stream);
  operation.timeout = impl.timeout;
  const std::lock_guard calling(impl.tags->calling());
  return impl.tags->submit(std::move(operation), stream);
}

// A collective with a view for each rank, as a group of messages.
class Lists {
 public:
  Lists(Communicator::Impl& impl, std::string_view name)
      : impl_(impl), arguments_(*impl.group, name) {}

  void send(ConstView src, int peer) { add(ATOLL_SEND, src, {}, peer); }
  void receive(View dst, int peer) { add(ATOLL_RECV, {}, dst, peer); }
  void send(std::span<const ConstView> src) {
    arguments_.list(src.size(), "src");
    for (const ConstView& one : src) send(one, next_sent_++);
  }
  void receive(std::span<const View> dst) {
    arguments_.list(dst.size(), "dst");
    for (const View& one : dst) receive(one, next_received_++);
  }
  Work start(Stream& stream) {
    if (Grouping* const grouping = Grouping::of(impl_))
      return grouping->add(std::move(parts_), stream);
    BackendCommunicator& group = *impl_.group;
    const std::lock_guard calling(group.calling());
    auto state = group.begin(stream);
    for (const Operation& part : parts_) group.declare_use(part, stream);
    if (!parts_.empty()) group.submit(std::move(parts_), state, stream);
    return group.finish(std::move(state), stream);
  }

 private:
  void add(std::int32_t kind, ConstView src, View dst, int peer) {
    const ConstView data = kind == ATOLL_SEND ? src : dst;
    arguments_.peer(peer);
    arguments_.buffer(data, kind == ATOLL_SEND ? "src" : "dst");
    parts_.push_back({kind, src, dst, data.count, data.dtype, ReduceOp::sum, peer});
    parts_.back().timeout = impl_.timeout;
  }

  Communicator::Impl& impl_;
  Arguments arguments_;
  std::vector<Operation> parts_;
  int next_sent_ = 0, next_received_ = 0;
};

std::vector<std::uint64_t> owned(std::span<const std::uint64_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

std::uint64_t Communicator::scratch_bytes(Sum sum, std::uint64_t count, DType dtype) const {
  const auto kind = sum == Sum::all_reduce ? ATOLL_ALL_REDUCE : ATOLL_REDUCE_SCATTER;
  const Operation operation{kind, {}, {}, count, dtype};
  if (impl_->two_level && impl_->two_level->takes(operation)) {
    return impl_->two_level->scratch_bytes(operation);
  }
  if (impl_->group->supports(kind, dtype, ReduceOp::sum)) return 0;
  return scratch_of_sum(impl_->group->shape(), operation);
}

void Communicator::reserve_scratch(std::uint64_t bytes) {
  require(impl_->group->sequence() == 0,
          "communicator {}: reserve_scratch() must be called before the first operation", name());
  if (bytes > 0) impl_->group->fallback_scratch().add(allocate(device(), bytes, {*this}));
}

Work Communicator::all_gather(ConstView src, View dst, Stream& stream) {
  const Arguments arguments(*impl_->group, "all_gather");
  arguments.blocks(src, dst, Whole::dst);
  return start(*impl_, {ATOLL_ALL_GATHER, src, dst, src.count, src.dtype}, stream);
}

Work Communicator::reduce_scatter(ConstView src, View dst, Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_->group, "reduce_scatter");
  arguments.blocks(src, dst, Whole::src);
  arguments.reduction(src.dtype, reduction);
  return start(*impl_, {ATOLL_REDUCE_SCATTER, src, dst, dst.count, src.dtype, reduction}, stream,
               fallback_reduce_scatter);
}

Work Communicator::all_reduce(ConstView src, View dst, Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_->group, "all_reduce");
  arguments.alike(src, dst);
  arguments.apart(src, dst, dst.data);
  arguments.reduction(src.dtype, reduction);
  return start(*impl_, {ATOLL_ALL_REDUCE, src, dst, src.count, src.dtype, reduction}, stream,
               fallback_all_reduce);
}

Work Communicator::reduce(ConstView src, View dst, Reduction reduction, int root, Stream& stream) {
  const Arguments arguments(*impl_->group, "reduce");
  arguments.peer(root);
  arguments.buffer(src, "src");
  arguments.reduction(src.dtype, reduction);
  if (rank() == root) {
    arguments.alike(src, dst);
    arguments.apart(src, dst, dst.data);
  }
  const View result = rank() == root ? dst : View{nullptr, 0, src.dtype};
  return start(*impl_, {ATOLL_REDUCE, src, result, src.count, src.dtype, reduction, root}, stream,
               fallback_reduce);
}

Work Communicator::broadcast(View data, int root, Stream& stream) {
  const Arguments arguments(*impl_->group, "broadcast");
  arguments.peer(root);
  arguments.buffer(data, "data");
  return start(*impl_, {ATOLL_BROADCAST, data, data, data.count, data.dtype, ReduceOp::sum, root},
               stream);
}

Work Communicator::all_to_all(ConstView src, View dst, Stream& stream) {
  const Arguments arguments(*impl_->group, "all_to_all");
  const std::uint64_t count = src.count / static_cast<std::uint64_t>(size());
  arguments.alike(src, dst);
  arguments.divisible(src);
  arguments.apart(src, dst);
  return start(*impl_, {ATOLL_ALL_TO_ALL, src, dst, count, src.dtype}, stream);
}

Work Communicator::gather(ConstView src, View dst, int root, Stream& stream) {
  const Arguments arguments(*impl_->group, "gather");
  arguments.peer(root);
  arguments.buffer(src, "src");
  if (rank() == root) arguments.blocks(src, dst, Whole::dst);
  const View result = rank() == root ? dst : View{nullptr, 0, src.dtype};
  return start(*impl_, {ATOLL_GATHER, src, result, src.count, src.dtype, ReduceOp::sum, root},
               stream, fallback_gather);
}

Work Communicator::scatter(ConstView src, View dst, int root, Stream& stream) {
  const Arguments arguments(*impl_->group, "scatter");
  arguments.peer(root);
  arguments.buffer(dst, "dst");
  if (rank() == root) arguments.blocks(src, dst, Whole::src);
  const ConstView source = rank() == root ? src : ConstView{nullptr, 0, dst.dtype};
  return start(*impl_, {ATOLL_SCATTER, source, dst, dst.count, dst.dtype, ReduceOp::sum, root},
               stream, fallback_scatter);
}

Work Communicator::all_gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                Stream& stream) {
  const Arguments arguments(*impl_->group, "all_gather_v");
  arguments.same_dtype(src, dst);
  const std::uint64_t first = arguments.counts(counts, dst.count, src.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst, dst.part(first, src.count).data);
  return start(
      *impl_, {ATOLL_ALL_GATHER_V, src, dst, dst.count, src.dtype, ReduceOp::sum, 0, owned(counts)},
      stream, fallback_all_gather_v);
}

Work Communicator::reduce_scatter_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                    Reduction reduction, Stream& stream) {
  const Arguments arguments(*impl_->group, "reduce_scatter_v");
  arguments.same_dtype(src, dst);
  const std::uint64_t first = arguments.counts(counts, src.count, dst.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(dst, src, src.part(first, dst.count).data);
  arguments.reduction(src.dtype, reduction);
  return start(
      *impl_, {ATOLL_REDUCE_SCATTER_V, src, dst, src.count, src.dtype, reduction, 0, owned(counts)},
      stream, fallback_reduce_scatter);
}

Work Communicator::gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                            int root, Stream& stream) {
  const Arguments arguments(*impl_->group, "gather_v");
  arguments.peer(root);
  const bool is_root = rank() == root;
  const std::uint64_t whole = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  const std::uint64_t first = arguments.counts(counts, is_root ? dst.count : whole, src.count);
  arguments.buffer(src, "src");
  if (is_root) {
    arguments.same_dtype(src, dst);
    arguments.buffer(dst, "dst");
    arguments.apart(src, dst, dst.part(first, src.count).data);
  }
  const View result = is_root ? dst : View{nullptr, 0, src.dtype};
  return start(*impl_,
               {ATOLL_GATHER_V, src, result, whole, src.dtype, ReduceOp::sum, root, owned(counts)},
               stream, fallback_gather);
}

Work Communicator::all_to_all_v(ConstView src, std::span<const std::uint64_t> send_counts, View dst,
                                std::span<const std::uint64_t> recv_counts, Stream& stream) {
  const Arguments arguments(*impl_->group, "all_to_all_v");
  arguments.same_dtype(src, dst);
  arguments.exchanged(send_counts, src.count, recv_counts, dst.count);
  arguments.buffer(src, "src");
  arguments.buffer(dst, "dst");
  arguments.apart(src, dst);
  Operation operation{ATOLL_ALL_TO_ALL_V, src,           dst, src.count,
                      src.dtype,          ReduceOp::sum, 0,   owned(send_counts)};
  operation.recv_counts = owned(recv_counts);
  return start(*impl_, std::move(operation), stream, fallback_all_to_all_v);
}

Work Communicator::send(ConstView src, int peer, Stream& stream, int tag) {
  const Arguments arguments(*impl_->group, "send");
  arguments.message(peer, tag, impl_->tags != nullptr, false);
  if (!impl_->tags && !Grouping::of(*impl_)) arguments.own_messages(peer == rank() ? 1 : 0, 0);
  arguments.buffer(src, "src");
  return start_message(*impl_, {ATOLL_SEND, src, {}, src.count, src.dtype, ReduceOp::sum, peer},
                       tag, stream);
}

Work Communicator::recv(View dst, int peer, Stream& stream, int tag) {
  const Arguments arguments(*impl_->group, "recv");
  arguments.message(peer, tag, impl_->tags != nullptr, true);
  if (!impl_->tags && !Grouping::of(*impl_)) arguments.own_messages(0, peer == rank() ? 1 : 0);
  arguments.buffer(dst, "dst");
  return start_message(*impl_, {ATOLL_RECV, {}, dst, dst.count, dst.dtype, ReduceOp::sum, peer},
                       tag, stream);
}

Work Communicator::barrier(Stream& stream) {
  return start(*impl_, {ATOLL_BARRIER, {}, {}, 0, DType::u8}, stream);
}

Work Communicator::group(const std::function<void()>& calls, Stream& stream) {
  if (Grouping::of(*impl_)) {  // inside another group() of this communicator
    calls();
    return {};
  }
  Grouping grouping(*impl_, stream);
  calls();
  return grouping.start();
}

Work Communicator::group(std::span<const SendRecv> operations, Stream& stream) {
  return group(
      [&] {
        for (const auto& [kind, data, peer, tag] : operations) {
          static_cast<void>(kind == SendRecv::Kind::send ? send(data, peer, stream, tag)
                                                         : recv(data, peer, stream, tag));
        }
      },
      stream);
}

Work Communicator::all_to_all_v(std::span<const ConstView> src, std::span<const View> dst,
                                Stream& stream) {
  Lists lists(*impl_, "all_to_all_v");
  lists.send(src);
  lists.receive(dst);
  return lists.start(stream);
}

Work Communicator::gather_v(ConstView src, std::span<const View> dst, int root, Stream& stream) {
  Lists lists(*impl_, "gather_v");
  lists.send(src, root);
  if (rank() == root) lists.receive(dst);
  return lists.start(stream);
}

Work Communicator::scatter_v(std::span<const ConstView> src, View dst, int root, Stream& stream) {
  Lists lists(*impl_, "scatter_v");
  if (rank() == root) lists.send(src);
  lists.receive(dst, root);
  return lists.start(stream);
}

}  // namespace atoll_v1::atoll
