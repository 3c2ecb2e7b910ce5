// The last operations of this rank, recorded without locks or allocation.
//
// The recorder is a ring of flight_capacity slots (slot.hpp). Operations are numbered, and number n
// uses slot n % flight_capacity.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/flight.hpp"
#include "atoll/view.hpp"
#include "flight/signals.hpp"
#include "flight/slot.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace atoll_v1::atoll {

// Time stamps that cost one instruction on machines with a steady counter.
// Ticks come from the time stamp counter if the kernel uses it as its own clock source, which it
// does only when the counter is steady and equal on all cores. Otherwise ticks are ns of the steady
// clock.
class FlightClock {
 public:
  FlightClock();

  std::int64_t ticks() const noexcept {
#if defined(__x86_64__)
    if (counts_) return static_cast<std::int64_t>(__rdtsc());
#endif
    return steady_ns();
  }

  // Readings of the tick counter and of the steady clock at the same moment.
  struct Point {
    std::int64_t ticks = 0;
    std::int64_t ns = 0;
  };
  // Converts ticks to ns of the steady clock. The rate is measured between the creation of the
  // clock and the creation of the scale. Ticks from that interval give times in that interval.
  struct Scale {
    Point first;
    Point last;  // reading of both clocks when the scale was created
    std::int64_t ns(std::int64_t ticks) const noexcept;
  };
  Scale scale() const noexcept { return {start_, look()}; }

 private:
  static std::int64_t steady_ns() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  Point look() const noexcept;

  bool counts_ = false;
  Point start_;
};

// The fields of an operation that are recorded when it is called.
struct FlightCall {
  std::int32_t kind;    // kind as numbered in plugin.h, such as ATOLL_ALL_GATHER
  std::uint64_t count;  // number of elements of the operation
  DType dtype;
  ReduceOp op = ReduceOp::sum;
  int peer = 0;               // root of a collective, or other rank of a send or recv
  std::int32_t part_of = -1;  // kind of the collective to which this call belongs; -1: none
};

// The recorder's data of one communicator of this rank. One caller at a time enqueues operations.
struct FlightTrack {
  std::uint32_t id = 0;
  FlightCommunicator description;  // id, name and ranks; its counts are unused
  std::atomic<std::uint64_t> enqueued{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> collectives_enqueued{0};
  std::atomic<std::uint64_t> collectives_completed{0};
  std::atomic<bool> closed{false};
  bool completes_in_parallel = false;   // true if several threads complete operations at a time
  std::atomic<std::uint64_t> bytes{0};  // bytes of all operations called so far
  // Ids of the threads that called and executed the latest operation; 0: none.
  std::atomic<int> caller{0};
  std::atomic<int> executor{0};
};

class FlightRecorder {
 public:
  // Starts recording a new communicator. Closed communicators are kept until there are
  // max_flight_communicators in all; then each new one replaces the oldest closed one.
  std::shared_ptr<FlightTrack> open(FlightCommunicator description);

  // Records calls, and returns the number of the first one; the others get the next numbers.
  // `sequence` is the number of the first call among the calls of its communicator.
  std::uint64_t enqueue(FlightTrack& track, std::span<const FlightCall> calls,
                        std::uint64_t sequence) noexcept;
  // Record that `n` operations have started or completed, from operation `number` on. `collectives`
  // is the number of collectives among them; the others are send and recv.
  void started(std::uint64_t number, std::size_t n) noexcept;
  void completed(FlightTrack& track, std::uint64_t number, std::size_t n,
                 std::uint64_t collectives) noexcept;
  void failed(std::uint64_t number, std::size_t n, std::string_view error);

  void mark_step(std::int64_t step) noexcept {
    step_.store(std::max<std::int64_t>(step, -1), std::memory_order_relaxed);
  }
  // Returns the bytes of all operations called so far.
  std::uint64_t bytes() const;
  // Returns the threads of the latest operation on each open communicator, without duplicates.
  std::vector<FlightThread> threads() const;

  // Returns the log without rank, host, reason and failure, which the caller adds.
  FlightLog snapshot() const;

 private:
  using Slot = FlightSlotOf<std::atomic>;

  Slot& slot(std::uint64_t number) noexcept { return slots_[number % flight_capacity]; }
  void finished(std::uint64_t first, std::size_t n, FlightState state) noexcept;
  // Returns the operation in a slot, with times in ticks, and the id of its communicator's track.
  static std::optional<std::pair<FlightOperation, std::uint32_t>> read(const Slot& slot);

  const FlightClock clock_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::int64_t> step_{-1};
  std::array<Slot, flight_capacity> slots_;
  mutable std::mutex mutex_;  // guards all members below
  std::vector<std::shared_ptr<FlightTrack>> tracks_;
  std::uint32_t next_track_ = 0;
  std::uint64_t forgotten_bytes_ = 0;  // bytes of tracks that newer tracks have replaced
  std::vector<std::pair<std::uint64_t, std::string>> errors_;  // failed operation and error text
};

}  // namespace atoll_v1::atoll
