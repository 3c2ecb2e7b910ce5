#include "flight/recorder.hpp"

#include <algorithm>
#include <chrono>

#include "atoll/plugin_names.hpp"

namespace atoll_v1::atoll {
namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

constexpr std::size_t max_errors = 64;

constexpr std::uint64_t state_bits = 3;
constexpr std::uint64_t state_mask = (1u << state_bits) - 1;
constexpr std::uint64_t writing = state_mask;

constexpr std::uint64_t word_of(std::uint64_t number, std::uint64_t state) {
  return (number + 1) << state_bits | state;
}
constexpr std::uint64_t word_of(std::uint64_t number, FlightState state) {
  return word_of(number, static_cast<std::uint64_t>(state));
}

}  // namespace

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

bool FlightRecorder::claim(Slot& entry, std::uint64_t number) noexcept {
  std::uint64_t word = entry.word.load(memory_order_relaxed);
  while (word >> state_bits <= number && (word & state_mask) != writing) {
    if (entry.word.compare_exchange_weak(word, word_of(number, writing), memory_order_acquire)) {
      return true;
    }
  }
  return false;
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
    Slot& entry = slot(number);
    if (claim(entry, number)) {
      // Fields are stored with release order and loaded with acquire order. A reader that sees a
      // field of this operation therefore also sees that this operation has claimed the slot.
      entry.sequence.store(sequence, memory_order_release);
      entry.collective.store(ordinal, memory_order_release);
      entry.count.store(call.count, memory_order_release);
      entry.track.store(track.id, memory_order_release);
      entry.peer.store(message || atoll_abi::has_root(call.kind) ? call.peer : -1,
                       memory_order_release);
      entry.kind.store(static_cast<std::int16_t>(call.kind), memory_order_release);
      entry.part_of.store(static_cast<std::int16_t>(call.part_of), memory_order_release);
      entry.dtype.store(static_cast<std::int16_t>(call.dtype), memory_order_release);
      entry.op.store(static_cast<std::int16_t>(call.op), memory_order_release);
      entry.enqueued.store(now, memory_order_release);
      entry.started.store(0, memory_order_release);
      entry.finished.store(0, memory_order_release);
      entry.word.store(word_of(number, FlightState::enqueued), memory_order_release);
    }
    ++number;
    ++sequence;
  }
  track.enqueued.store(sequence, memory_order_relaxed);
  track.bytes.store(bytes, memory_order_relaxed);
  track.caller.store(this_thread(), memory_order_relaxed);
  track.collectives_enqueued.store(collectives, memory_order_relaxed);
  return first;
}

// If another operation takes the slot between the check of its number and the store of the time,
// the slot has a wrong time until that operation stores its own.
void FlightRecorder::advance(std::uint64_t first, std::size_t n,
                             std::atomic<std::int64_t> Slot::*time, FlightState state) noexcept {
  const std::int64_t now = clock_.ticks();
  for (std::uint64_t number = first; number < first + n; ++number) {
    Slot& entry = slot(number);
    std::uint64_t word = entry.word.load(memory_order_relaxed);
    if (word >> state_bits != number + 1 || (word & state_mask) == writing) continue;
    (entry.*time).store(now, memory_order_release);
    entry.word.compare_exchange_strong(word, word_of(number, state), memory_order_release,
                                       memory_order_relaxed);
  }
}

void FlightRecorder::started(std::uint64_t number, std::size_t n) noexcept {
  advance(number, n, &Slot::started, FlightState::started);
}

void FlightRecorder::completed(FlightTrack& track, std::uint64_t number, std::size_t n,
                               std::uint64_t collectives) noexcept {
  advance(number, n, &Slot::finished, FlightState::completed);
  // Operations of a communicator complete one after the other, so only one thread at a time updates
  // the counters of the communicator.
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
  advance(number, n, &Slot::finished, FlightState::failed);
}

std::optional<std::pair<FlightOperation, std::uint32_t>> FlightRecorder::read(const Slot& entry) {
  constexpr int attempts = 4;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::uint64_t word = entry.word.load(memory_order_acquire);
    if (word == 0 || (word & state_mask) == writing) return std::nullopt;
    FlightOperation operation;
    operation.number = (word >> state_bits) - 1;
    operation.state = static_cast<FlightState>(word & state_mask);
    const std::int32_t kind = entry.kind.load(memory_order_acquire);
    const auto dtype = static_cast<DType>(entry.dtype.load(memory_order_acquire));
    operation.kind = atoll_abi::kind_name(kind);
    const std::int32_t whole = entry.part_of.load(memory_order_acquire);
    if (whole >= 0) operation.part_of = atoll_abi::kind_name(whole);
    operation.sequence = entry.sequence.load(memory_order_acquire);
    operation.collective = entry.collective.load(memory_order_acquire);
    operation.dtype = name(dtype);
    if (atoll_abi::reduces(kind)) {
      operation.op = name(static_cast<ReduceOp>(entry.op.load(memory_order_acquire)));
    }
    operation.count = entry.count.load(memory_order_acquire);
    operation.bytes = operation.count * size_of(dtype);
    operation.peer = entry.peer.load(memory_order_acquire);
    operation.enqueued_ns = entry.enqueued.load(memory_order_acquire);
    if (operation.state != FlightState::enqueued) {
      operation.started_ns = entry.started.load(memory_order_acquire);
    }
    const bool finished =
        operation.state == FlightState::completed || operation.state == FlightState::failed;
    if (finished) operation.finished_ns = entry.finished.load(memory_order_acquire);
    const std::uint32_t track = entry.track.load(memory_order_acquire);
    if (entry.word.load(memory_order_acquire) == word) return std::pair(operation, track);
  }
  return std::nullopt;  // the slot keeps changing, so its operation does not hang
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
