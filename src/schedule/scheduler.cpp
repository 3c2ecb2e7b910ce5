#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/schedule.hpp"
#include "core/errors.hpp"
#include "core/operation_label.hpp"
#include "device/backend.hpp"
#include "device/checked/device.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::array<std::string_view, 3> lane_names = {"gather", "reduce", "replicate"};

constexpr std::size_t lane_index(Lane lane) { return static_cast<std::size_t>(lane); }

// A record whose times are not known yet, because its stream has not passed the stamps. It stores
// only the texts that may no longer exist later; take_records() builds the others.
struct LogEntry {
  TraceRecord record;
  Lane lane = Lane::gather;
  // Number of the collective among those of all lanes. For a wait: number of the last collective to
  // wait for; 0 if it does not wait for a lane.
  std::uint64_t number = 0;
  Stamp begin{}, end{};
  std::string_view axis{};
};

constexpr std::size_t capacity_unasked = 16'384;  // records kept before the first take()
constexpr std::size_t capacity_asked = 262'144;   // records kept after the first take()

// Waits shorter than this are dropped, because they are only the overhead of the time stamps.
constexpr std::int64_t shortest_wait_ns = 1'000;

bool set_times(LogEntry& entry) {
  const auto begin = entry.begin.ns(), end = entry.end.ns();
  if (!begin || !end) return false;
  entry.record.begin_ns = *begin;
  entry.record.end_ns = std::max(*begin, *end);
  return true;
}

void set_texts(LogEntry& entry) {
  TraceRecord& record = entry.record;
  const std::string_view lane = lane_names[lane_index(entry.lane)];
  record.axis = entry.axis;
  if (is_collective(record.activity)) record.row = lane;
  if (record.activity != Activity::wait || entry.number == 0) return;
  record.label.insert(0, record.label.empty() ? "" : " ").insert(0, lane);
}

std::int64_t overlap_ns(const TraceRecord& a, const TraceRecord& b) {
  return std::min(a.end_ns, b.end_ns) - std::max(a.begin_ns, b.begin_ns);
}

void attribute(const LogEntry& wait, std::span<LogEntry* const> collectives) {
  const auto first = std::ranges::partition_point(collectives, [&](const LogEntry* entry) {
    return entry->record.end_ns <= wait.record.begin_ns;
  });
  for (auto entry = first; entry != collectives.end(); ++entry) {
    if ((*entry)->number > wait.number) break;
    const std::int64_t both = overlap_ns(wait.record, (*entry)->record);
    if (both <= 0) break;
    (*entry)->record.waited_ns += both;
  }
}

// Computes how long compute waited for each collective: the time during which a wait and the
// collective overlap. A lane runs one operation at a time, in order, so compute that waits for an
// event of the lane waits for the operation that the lane is running. An all-reduce across replicas
// waits for reduce-scatters, so a wait for the lane `replicate` is also attributed to earlier
// collectives on the lane `reduce`.
void attribute_waits(std::span<LogEntry* const> entries) {
  std::array<std::vector<LogEntry*>, 3> lanes;
  for (LogEntry* entry : entries) {
    if (!is_collective(entry->record.activity)) continue;
    lanes[lane_index(entry->lane)].push_back(entry);
  }
  for (const LogEntry* entry : entries) {
    if (entry->record.activity != Activity::wait) continue;
    attribute(*entry, lanes[lane_index(entry->lane)]);
    if (entry->lane != Lane::replicate) continue;
    attribute(*entry, lanes[lane_index(Lane::reduce)]);
  }
}

bool is_wait_for_nothing(const TraceRecord& record) {
  return record.activity == Activity::wait && record.end_ns - record.begin_ns < shortest_wait_ns;
}

class ActivityLog {
 public:
  void add(LogEntry&& entry) {
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
      return;
    }
    entries_[oldest_] = std::move(entry);
    oldest_ = (oldest_ + 1) % capacity_;
    ++left_out_;
  }

  // Removes and returns the records whose times are known.
  TraceLog take() {
    std::ranges::rotate(entries_, entries_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    oldest_ = 0;
    capacity_ = capacity_asked;
    std::vector<LogEntry*> complete;
    std::vector<LogEntry> open;
    for (LogEntry& entry : entries_) {
      if (set_times(entry)) {
        complete.push_back(&entry);
      } else {
        open.push_back(std::move(entry));
      }
    }
    attribute_waits(complete);
    TraceLog log;
    log.left_out = std::exchange(left_out_, 0);
    log.records.reserve(complete.size());
    for (LogEntry* entry : complete) {
      if (is_wait_for_nothing(entry->record)) continue;
      set_texts(*entry);
      log.records.push_back(std::move(entry->record));
    }
    entries_.clear();  // unlike an assignment, clear() keeps the allocation
    std::ranges::move(open, std::back_inserter(entries_));
    return log;
  }

 private:
  std::vector<LogEntry> entries_;  // a ring buffer once the log is full
  std::size_t oldest_ = 0;
  std::size_t capacity_ = capacity_unasked;
  std::uint64_t left_out_ = 0;
};

// A collective, its lane, and the names of its axis and work in the log.
struct CollectiveCall {
  Activity activity;
  Lane lane;
  std::string_view axis, label;
};

Work start_collective(Activity collective, Communicator& communicator, ConstView src, View dst,
                      Stream& lane) {
  if (collective == Activity::all_gather) return communicator.all_gather(src, dst, lane);
  if (collective == Activity::reduce_scatter)
    return communicator.reduce_scatter(src, dst, ReduceOp::sum, lane);
  return communicator.all_reduce(src, dst, ReduceOp::sum, lane);
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
        streams{lane_stream(Lane::gather, StreamPriority::high),
                lane_stream(Lane::reduce, StreamPriority::high),
                lane_stream(Lane::replicate, StreamPriority::normal)} {
    // All ranks must open the communicators in the same order. Each lane has its own communicator,
    // so that no lane waits for another lane.
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

  Stream lane_stream(Lane lane, StreamPriority priority) const {
    return device.stream({.name = std::string(lane_names[lane_index(lane)]), .priority = priority});
  }
  std::optional<Communicator>& communicator(Lane lane) { return communicators[lane_index(lane)]; }
  Stream& stream(Lane lane) { return streams[lane_index(lane)]; }

  // Enqueues a collective on its lane after `after`, and logs it with stamps before and after the
  // collective. Without a communicator the collective is a copy.
  Work collective(const CollectiveCall& call, std::optional<Communicator>& communicator,
                  ConstView src, View dst, const Event& after) {
    Stream& on = stream(call.lane);
    on.wait(after);
    if (!communicator) return Work::local_copy(src, dst, on);
    const Stamp begin = on.stamp();
    const OperationLabel label(call.label);
    Work work = start_collective(call.activity, *communicator, src, dst, on);
    log.add({.record = {.activity = call.activity,
                        .label = std::string(call.label),
                        .bytes = std::max(src.bytes(), dst.bytes()),
                        .ranks = communicator->size()},
             .lane = call.lane,
             .number = ++collectives,
             .begin = begin,
             .end = on.stamp(),
             .axis = call.axis});
    return work;
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
  return impl_->collective({Activity::all_gather, Lane::gather, "shard", label},
                           impl_->communicator(Lane::gather), src, dst, after);
}

Work Scheduler::all_gather_secondary(ConstView src, View dst, const Event& after,
                                     std::string_view label) {
  require(!impl_->secondary.ranks.empty(),
          "Scheduler: all_gather_secondary() needs SchedulerOptions::secondary, which is empty");
  return impl_->collective({Activity::all_gather, Lane::gather, "secondary", label},
                           impl_->gather_secondary, src, dst, after);
}

Work Scheduler::reduce_scatter(ConstView src, View dst, const Event& after,
                               std::string_view label) {
  return impl_->collective({Activity::reduce_scatter, Lane::reduce, "shard", label},
                           impl_->communicator(Lane::reduce), src, dst, after);
}

Work Scheduler::all_reduce(View data, const Event& after, std::string_view label) {
  return impl_->collective({Activity::all_reduce, Lane::replicate, "replicate", label},
                           impl_->communicator(Lane::replicate), data, data, after);
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

void Scheduler::check() const {
  for (const auto& one : impl_->communicators)
    if (one) one->check();
  if (impl_->gather_secondary) impl_->gather_secondary->check();
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
  impl_->log.add(
      {.record = {.activity = Activity::wait, .row = compute.name(), .label = std::string(label)},
       .lane = event.lane(),
       .number = event.through(),
       .begin = begin,
       .end = compute.stamp()});
}

Stamp Scheduler::begin_work(Stream& stream) {
  return impl_->recording == Recording::work ? stream.stamp() : Stamp();
}

void Scheduler::end_work(Stream& stream, const Stamp& begin, std::string_view what,
                         std::string_view subject) {
  if (!begin) return;
  std::string label(what);
  if (!subject.empty()) label.append(" ").append(subject);
  impl_->log.add({.record = {.row = stream.name(), .label = std::move(label)},
                  .begin = begin,
                  .end = stream.stamp()});
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
