#include "flight/recorder.hpp"

#include <fstream>
#include <limits>

#include "atoll/plugin_names.hpp"

namespace atoll_v1::atoll {
namespace {

using std::memory_order_relaxed;

constexpr std::size_t max_errors = 64;

}  // namespace

FlightClock::FlightClock() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  counts_ = file >> source && source == "tsc";
#endif
  start_ = look();
}

// Reads the tick counter and the steady clock at nearly the same moment: makes several attempts and
// returns the attempt that took the shortest time.
FlightClock::Point FlightClock::look() const noexcept {
  constexpr int attempts = 5;
  Point best;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < attempts; ++i) {
    const std::int64_t before = ticks(), ns = steady_ns(), spent = ticks() - before;
    if (spent >= shortest) continue;
    shortest = spent;
    best = {before + spent / 2, ns};
  }
  return best;
}

std::int64_t FlightClock::Scale::ns(std::int64_t ticks) const noexcept {
  if (ticks >= last.ticks) return last.ns;
  const auto part = static_cast<double>(std::max<std::int64_t>(ticks - first.ticks, 0)) /
                    static_cast<double>(last.ticks - first.ticks);
  return first.ns + static_cast<std::int64_t>(part * static_cast<double>(last.ns - first.ns));
}

std::shared_ptr<FlightTrack> FlightRecorder::open(FlightCommunicator description) {
  auto track = std::make_shared<FlightTrack>();
  track->description = std::move(description);
  const std::lock_guard lock(mutex_);
  track->id = next_track_++;
  if (tracks_.size() >= max_flight_communicators) {
    const auto oldest =
        std::ranges::find_if(tracks_, [](const auto& t) { return t->closed.load(); });
    if (oldest != tracks_.end()) {
      forgotten_bytes_ += (*oldest)->bytes;
      tracks_.erase(oldest);
    }
  }
  tracks_.push_back(track);
  return track;
}

std::uint64_t FlightRecorder::enqueue(FlightTrack& track, std::span<const FlightCall> calls,
                                      std::uint64_t sequence) noexcept {
  const std::int64_t now = clock_.ticks();
  const std::uint64_t first = next_.fetch_add(calls.size(), memory_order_relaxed);
  std::uint64_t number = first;
  std::uint64_t collectives = track.collectives_enqueued.load(memory_order_relaxed);
  std::uint64_t bytes = track.bytes.load(memory_order_relaxed);
  for (const FlightCall& call : calls) {
    bytes += call.count * size_of(call.dtype);
    const bool message = atoll_abi::is_message(call.kind);
    const auto ordinal = message ? -1 : static_cast<std::int64_t>(collectives++);
    const bool has_peer = message || atoll_abi::has_root(call.kind);
    slot(number).enqueue(number, {.sequence = sequence,
                                  .collective = ordinal,
                                  .count = call.count,
                                  .enqueued = now,
                                  .track = track.id,
                                  .peer = has_peer ? call.peer : -1,
                                  .kind = static_cast<std::int16_t>(call.kind),
                                  .part_of = static_cast<std::int16_t>(call.part_of),
                                  .dtype = static_cast<std::int16_t>(call.dtype),
                                  .op = static_cast<std::int16_t>(call.op)});
    ++number;
    ++sequence;
  }
  track.enqueued.store(sequence, memory_order_relaxed);
  track.bytes.store(bytes, memory_order_relaxed);
  track.caller.store(this_thread(), memory_order_relaxed);
  track.collectives_enqueued.store(collectives, memory_order_relaxed);
  return first;
}

void FlightRecorder::started(std::uint64_t number, std::size_t n) noexcept {
  const std::int64_t now = clock_.ticks();
  for (std::uint64_t i = number; i < number + n; ++i) slot(i).start(i, now);
}

void FlightRecorder::finished(std::uint64_t first, std::size_t n, FlightState state) noexcept {
  const std::int64_t now = clock_.ticks();
  for (std::uint64_t i = first; i < first + n; ++i) slot(i).finish(i, now, state);
}

void FlightRecorder::completed(FlightTrack& track, std::uint64_t number, std::size_t n,
                               std::uint64_t collectives) noexcept {
  finished(number, n, FlightState::completed);
  if (track.completes_in_parallel) {
    track.completed.fetch_add(n, memory_order_relaxed);
    track.collectives_completed.fetch_add(collectives, memory_order_relaxed);
    return;
  }
  track.completed.store(track.completed.load(memory_order_relaxed) + n, memory_order_relaxed);
  track.collectives_completed.store(
      track.collectives_completed.load(memory_order_relaxed) + collectives, memory_order_relaxed);
}

void FlightRecorder::failed(std::uint64_t number, std::size_t n, std::string_view error) {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < n; ++i) {
      if (errors_.size() >= max_errors) errors_.erase(errors_.begin());
      errors_.emplace_back(number + i, error.substr(0, max_flight_text));
    }
  }
  finished(number, n, FlightState::failed);
}

std::optional<std::pair<FlightOperation, std::uint32_t>> FlightRecorder::read(const Slot& entry) {
  const std::optional<FlightRecord> record = entry.read();
  if (!record) return std::nullopt;
  const FlightCallRecord& call = record->call;
  const auto dtype = static_cast<DType>(call.dtype);
  FlightOperation operation;
  operation.number = record->number;
  operation.state = record->state;
  operation.kind = atoll_abi::kind_name(call.kind);
  if (call.part_of >= 0) operation.part_of = atoll_abi::kind_name(call.part_of);
  operation.sequence = call.sequence;
  operation.collective = call.collective;
  operation.dtype = name(dtype);
  if (atoll_abi::reduces(call.kind)) operation.op = name(static_cast<ReduceOp>(call.op));
  operation.count = call.count;
  operation.bytes = operation.count * size_of(dtype);
  operation.peer = call.peer;
  operation.enqueued_ns = call.enqueued;
  operation.started_ns = record->started;
  operation.finished_ns = record->finished;
  return std::pair(std::move(operation), call.track);
}

std::uint64_t FlightRecorder::bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = forgotten_bytes_;
  for (const auto& track : tracks_) sum += track->bytes;
  return sum;
}

std::vector<FlightThread> FlightRecorder::threads() const {
  std::vector<FlightThread> threads;
  const auto add = [&](int id, const char* role) {
    const bool is_new = std::ranges::find(threads, id, &FlightThread::id) == threads.end();
    if (id != 0 && is_new) threads.push_back({id, role});
  };
  const std::lock_guard lock(mutex_);
  for (const auto& track : tracks_) {
    if (!track->closed) add(track->caller, "caller");
  }
  for (const auto& track : tracks_) {
    if (!track->closed) add(track->executor, "executor");
  }
  return threads;
}

FlightLog FlightRecorder::snapshot() const {
  std::vector<std::pair<FlightOperation, std::uint32_t>> operations;
  for (const Slot& entry : slots_) {
    if (auto operation = read(entry)) operations.push_back(*std::move(operation));
  }
  std::ranges::sort(operations, {}, [](const auto& item) { return item.first.number; });

  FlightLog log;
  const FlightClock::Scale scale = clock_.scale();
  log.monotonic_ns = scale.last.ns;
  log.step = step_.load(memory_order_relaxed);
  log.written_ns =
      std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  const std::lock_guard lock(mutex_);
  for (const auto& track : tracks_) {
    FlightCommunicator& communicator = log.communicators.emplace_back(track->description);
    communicator.closed = track->closed;
    // The numbers of completed operations are read first, so that they never exceed the numbers of
    // enqueued operations.
    communicator.completed = track->completed;
    communicator.collectives_completed = track->collectives_completed;
    communicator.enqueued = track->enqueued;
    communicator.collectives_enqueued = track->collectives_enqueued;
  }
  for (auto& [operation, id] : operations) {
    const auto track = std::ranges::find(tracks_, id, &FlightTrack::id);
    if (track == tracks_.end()) continue;
    operation.communicator = static_cast<std::size_t>(track - tracks_.begin());
    for (auto* time : {&operation.enqueued_ns, &operation.started_ns, &operation.finished_ns}) {
      if (*time != 0) *time = scale.ns(*time);
    }
    if (operation.state == FlightState::failed) {
      const auto error = std::ranges::find(errors_, operation.number,
                                           &std::pair<std::uint64_t, std::string>::first);
      if (error != errors_.end()) operation.error = error->second;
    }
    log.operations.push_back(std::move(operation));
  }
  return log;
}

}  // namespace atoll_v1::atoll
