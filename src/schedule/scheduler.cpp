#include <array>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/schedule.hpp"
#include "core/assert.hpp"
#include "core/errors.hpp"
#include "core/operation_label.hpp"
#include "device/backend.hpp"
#include "device/checked/device.hpp"
#include "schedule/activity_log.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

TraceRecord record_of(Activity activity, std::string_view axis, std::uint64_t bytes,
                      std::string_view label) {
  return {
      .activity = activity, .label = std::string(label), .bytes = bytes, .axis = std::string(axis)};
}

Lane lane_of(Activity collective) {
  if (collective == Activity::all_gather) return Lane::gather;
  return collective == Activity::reduce_scatter ? Lane::reduce : Lane::replicate;
}

// Returns `axis`, or an axis of this rank alone if `axis` has no ranks. `other` then provides the
// World.
Axis or_alone(const Axis& axis, const Axis& other, std::string_view name) {
  require(!WorldInternals::is_over(axis.hold),
          "Scheduler: the World of axis {} has been destroyed: it must outlive its meshes",
          axis.name);
  if (!axis.ranks.empty() && axis.world) return axis;
  require(other.world != nullptr,
          "Scheduler: the shard axis or the replicate axis must have ranks");
  return {.world = other.world, .name = std::string(name), .ranks = {other.world->rank()}};
}

}  // namespace

struct Scheduler::Impl {
  Impl(const Axis& shard_axis, const Axis& replicate_axis, SchedulerOptions options)
      : shard(or_alone(shard_axis, replicate_axis, "shard")),
        replicate(or_alone(replicate_axis, shard_axis, "replicate")),
        secondary(std::move(options.secondary)),
        device(shard.world->config().check == "lifetimes"
                   ? checked_device(options.device, shard.world->rank())
                   : options.device),
        streams{device.stream({.name = "gather", .priority = StreamPriority::high}),
                device.stream({.name = "reduce", .priority = StreamPriority::high}),
                device.stream({.name = "replicate"})} {
    // All ranks open the communicators in this order. Each lane has its own communicator, so that
    // no lane waits for another lane.
    const auto open = [&](const Axis& axis, std::string_view lane) -> std::optional<Communicator> {
      if (axis.size() == 1) return std::nullopt;
      const ComputeUnits units = lane == "gather" ? options.gather_units
                                 : lane == "root" ? ComputeUnits::few
                                                  : options.reduce_units;
      return Communicator::open(axis, {.name = axis.name + "." + std::string(lane),
                                       .backend = options.backend,
                                       .device = device,
                                       .parent = root ? &*root : nullptr,
                                       .levels = lane == "gather" || lane == "reduce",
                                       .compute_units = units});
    };
    if (device.kind() == DeviceKind::cuda && options.root.size() > 1) {
      root = open(options.root, "root");
    }
    communicator(Lane::gather) = open(shard, "gather");
    communicator(Lane::reduce) = open(shard, "reduce");
    communicator(Lane::replicate) = open(replicate, "replicate");
    if (!secondary.ranks.empty()) gather_secondary = open(secondary, "gather");
  }

  std::optional<Communicator>& communicator(Lane lane) {
    return communicators[static_cast<std::size_t>(lane)];
  }
  Stream& stream(Lane lane) { return streams[static_cast<std::size_t>(lane)]; }

  // Enqueues a collective on its lane after `after`, and logs `record` with stamps before and after
  // the collective. Without a communicator the collective is a copy.
  template <class Start>
  Work collective(std::optional<Communicator>& communicator, TraceRecord record, ConstView src,
                  View dst, const Event& after, const Start& start) {
    const Lane lane = lane_of(record.activity);
    Stream& on = stream(lane);
    on.wait(after);
    if (!communicator) return Work::local_copy(src, dst, on);
    record.row = on.name();
    record.ranks = communicator->size();
    const Stamp begin = on.stamp();
    const OperationLabel label(record.label);
    Work work = start(*communicator, on);
    log.add({std::move(record), lane, ++collectives, begin, on.stamp()});
    return work;
  }

  Work all_gather(std::optional<Communicator>& communicator, TraceRecord record, ConstView src,
                  View dst, const Event& after) {
    return collective(
        communicator, std::move(record), src, dst, after,
        [&](Communicator& on, Stream& lane) { return on.all_gather(src, dst, lane); });
  }

  Axis shard, replicate, secondary;
  Device device;
  ActivityLog log;
  std::uint64_t collectives = 0;
  Recording recording = Recording::collectives;
  // Streams are declared before the communicators, because communicators must be closed before
  // their streams are destroyed.
  std::array<Stream, 3> streams;
  // The communicator from which the communicators of the lanes are split. It runs no collectives.
  std::optional<Communicator> root;
  std::array<std::optional<Communicator>, 3> communicators;
  std::optional<Communicator> gather_secondary;
};

Scheduler::Scheduler(const Axis& shard, const Axis& replicate, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(shard, replicate, std::move(options)), "Scheduler") {}
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;
Scheduler::~Scheduler() = default;

Work Scheduler::all_gather(ConstView src, View dst, const Event& after, std::string_view label) {
  return impl_->all_gather(impl_->communicator(Lane::gather),
                           record_of(Activity::all_gather, "shard", dst.bytes(), label), src, dst,
                           after);
}

Work Scheduler::all_gather_secondary(ConstView src, View dst, const Event& after,
                                     std::string_view label) {
  require(!impl_->secondary.ranks.empty(),
          "Scheduler: all_gather_secondary() needs SchedulerOptions::secondary, which is empty");
  return impl_->all_gather(impl_->gather_secondary,
                           record_of(Activity::all_gather, "secondary", dst.bytes(), label), src,
                           dst, after);
}

Work Scheduler::reduce_scatter(ConstView src, View dst, const Event& after,
                               std::string_view label) {
  return impl_->collective(impl_->communicator(Lane::reduce),
                           record_of(Activity::reduce_scatter, "shard", src.bytes(), label), src,
                           dst, after, [&](Communicator& on, Stream& lane) {
                             return on.reduce_scatter(src, dst, ReduceOp::sum, lane);
                           });
}

Work Scheduler::all_reduce(View data, const Event& after, std::string_view label) {
  return impl_->collective(impl_->communicator(Lane::replicate),
                           record_of(Activity::all_reduce, "replicate", data.bytes(), label), data,
                           data, after, [&](Communicator& on, Stream& lane) {
                             return on.all_reduce(data, data, ReduceOp::sum, lane);
                           });
}

LaneEvent Scheduler::run(Lane lane, const Event& after, const std::function<void(Stream&)>& enqueue,
                         std::string_view label) {
  Stream& stream = impl_->stream(lane);
  stream.wait(after);
  const Stamp begin = begin_work(stream);
  enqueue(stream);
  end_work(stream, begin, label);
  return record(lane);
}

LaneEvent Scheduler::record(Lane lane) {
  return {impl_->stream(lane).record(), lane, impl_->collectives};
}

void Scheduler::wait(Stream& compute, const LaneEvent& event, std::string_view label) {
  if (!event.backend() || event.backend()->peek()) {
    return compute.wait(event, WaitReason::communication);
  }
  const Stamp begin = compute.stamp();
  compute.wait(event, WaitReason::communication);
  TraceRecord record{.activity = Activity::wait, .row = compute.name()};
  if (event.through() > 0) record.label = impl_->stream(event.lane()).name();
  if (!label.empty()) record.label.append(record.label.empty() ? "" : " ").append(label);
  impl_->log.add({std::move(record), event.lane(), event.through(), begin, compute.stamp()});
}

Stamp Scheduler::begin_work(Stream& stream) {
  return impl_->recording == Recording::work ? stream.stamp() : Stamp();
}

void Scheduler::end_work(Stream& stream, const Stamp& begin, std::string_view what,
                         std::string_view subject) {
  if (!begin) return;
  std::string label(what);
  if (!subject.empty()) label.append(" ").append(subject);
  impl_->log.add(
      {{.row = stream.name(), .label = std::move(label)}, Lane::gather, 0, begin, stream.stamp()});
}

void Scheduler::set_recording(Recording recording) { impl_->recording = recording; }
TraceLog Scheduler::take_records() { return impl_->log.take(); }

std::uint64_t Scheduler::scratch_bytes(Lane lane, std::uint64_t count, DType dtype) const {
  const auto& communicator = impl_->communicator(lane);
  if (lane == Lane::gather || !communicator) return 0;
  const auto sum =
      lane == Lane::reduce ? Communicator::Sum::reduce_scatter : Communicator::Sum::all_reduce;
  return communicator->scratch_bytes(sum, count, dtype);
}

void Scheduler::reserve_scratch(Lane lane, std::uint64_t bytes) {
  auto& communicator = impl_->communicator(lane);
  if (bytes > 0 && communicator) communicator->reserve_scratch(bytes);
}

Buffer Scheduler::allocate(std::size_t bytes, std::initializer_list<Lane> lanes) {
  std::vector<std::reference_wrapper<Communicator>> communicators;
  for (const Lane lane : lanes) {
    if (auto& communicator = impl_->communicator(lane)) communicators.emplace_back(*communicator);
    if (lane == Lane::gather && impl_->gather_secondary) {
      communicators.emplace_back(*impl_->gather_secondary);
    }
  }
  if (communicators.empty()) return impl_->device.allocate(bytes);
  return atoll::allocate(impl_->device, bytes, communicators);
}

Stream& Scheduler::stream(Lane lane) { return impl_->stream(lane); }
const Device& Scheduler::device() const { return impl_->device; }
int Scheduler::shard_count() const { return impl_->shard.size(); }
int Scheduler::replicate_count() const { return impl_->replicate.size(); }
int Scheduler::shard_index() const { return impl_->shard.index; }
int Scheduler::replicate_index() const { return impl_->replicate.index; }

std::string_view Scheduler::backend() const {
  for (const auto& communicator : impl_->communicators) {
    if (communicator) return communicator->backend();
  }
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
