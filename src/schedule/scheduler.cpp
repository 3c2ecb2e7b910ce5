#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "atoll/schedule.hpp"
#include "core/assert.hpp"

namespace atoll_v1::atoll {

struct Scheduler::Impl {
  Impl(const Axis& shard_axis, const Axis& replicate_axis, SchedulerOptions options)
      : device(std::move(options.device)),
        shard(shard_axis),
        replicate(replicate_axis),
        streams{device.stream({.name = "gather", .priority = StreamPriority::high}),
                device.stream({.name = "reduce", .priority = StreamPriority::high}),
                device.stream({.name = "outer"})} {
    // One order on all ranks; each lane its own, so that none waits behind another.
    const auto open = [&](const Axis& axis, std::string_view lane) -> std::optional<Communicator> {
      if (axis.size() == 1) return std::nullopt;
      return Communicator::open(axis, {.name = axis.name + "." + std::string(lane),
                                       .backend = options.backend,
                                       .device = device});
    };
    gather = open(shard, "gather");
    reduce = open(shard, "reduce");
    outer = open(replicate, "outer");
  }

  Stream& stream(Lane lane) { return streams[static_cast<std::size_t>(lane)]; }

  Device device;
  Axis shard, replicate;
  // Communicators are closed before the streams that their operations ran on end.
  std::array<Stream, 3> streams;
  std::optional<Communicator> gather, reduce, outer;
};

Scheduler::Scheduler(const Axis& shard, const Axis& replicate, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(shard, replicate, std::move(options))) {}
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;
Scheduler::~Scheduler() = default;

Work Scheduler::all_gather(ConstView src, View dst, const Event& after) {
  Stream& stream = impl_->stream(Lane::gather);
  stream.wait(after);
  if (impl_->gather) return impl_->gather->all_gather(src, dst, stream);
  return Work::local_copy(src, dst, stream);
}

Work Scheduler::reduce_scatter(ConstView src, View dst, const Event& after) {
  Stream& stream = impl_->stream(Lane::reduce);
  stream.wait(after);
  if (impl_->reduce) return impl_->reduce->reduce_scatter(src, dst, ReduceOp::sum, stream);
  return Work::local_copy(src, dst, stream);
}

Work Scheduler::all_reduce(View data, const Event& after) {
  Stream& stream = impl_->stream(Lane::outer);
  stream.wait(after);
  if (impl_->outer) return impl_->outer->all_reduce(data, data, ReduceOp::sum, stream);
  return Work::local_copy(data, data, stream);
}

Event Scheduler::run(Lane lane, const Event& after, const std::function<void(Stream&)>& enqueue) {
  Stream& stream = impl_->stream(lane);
  stream.wait(after);
  enqueue(stream);
  return stream.record();
}

Stream& Scheduler::stream(Lane lane) noexcept { return impl_->stream(lane); }
const Device& Scheduler::device() const noexcept { return impl_->device; }
int Scheduler::shard_count() const noexcept { return impl_->shard.size(); }
int Scheduler::replicate_count() const noexcept { return impl_->replicate.size(); }
int Scheduler::shard_index() const noexcept { return impl_->shard.index; }
int Scheduler::replicate_index() const noexcept { return impl_->replicate.index; }

std::string_view Scheduler::backend() const noexcept {
  if (impl_->gather) return impl_->gather->backend();
  if (impl_->outer) return impl_->outer->backend();
  return "none";
}

void Scheduler::synchronize() {
  std::exception_ptr first;
  for (Stream& stream : impl_->streams) {
    try {
      stream.synchronize();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace atoll_v1::atoll
