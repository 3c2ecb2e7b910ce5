// The last operations of this rank, recorded without locks or allocation.
//
// A ring of flight_capacity slots. An operation takes the next number and the slot number %
// capacity; `word` of the slot is (number + 1) << 3 | state, 0 while it is empty. A writer claims
// the slot by exchanging the word for one in state `writing`, fills the fields and publishes the
// word; started and finished exchange the word of their own number only, so an operation that has
// been overwritten stays so. Two writers meet in a slot only when one of them was held up for a
// whole turn of the ring: the older entry is dropped. A reader copies a slot and looks at the word
// again.
#pragma once

#include <array>
#include <atomic>
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
#include "comm/communicator_impl.hpp"
#include "flight/clock.hpp"

namespace atoll_v1::atoll {

// One communicator of this rank. enqueue() has one caller at a time, as submit() has.
struct FlightLane {
  std::uint32_t id = 0;
  FlightCommunicator description;  // its counts are those below
  std::atomic<std::uint64_t> enqueued{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> collectives_enqueued{0};
  std::atomic<std::uint64_t> collectives_completed{0};
  std::atomic<bool> closed{false};
};

class FlightRecorder {
 public:
  using Lane = FlightLane;

  // A lane is kept when its communicator is gone, until there are max_flight_communicators.
  std::shared_ptr<Lane> open(FlightCommunicator description);

  // The number of the first; the others follow. `sequence` counts as plugin.h does.
  std::uint64_t enqueue(Lane& lane, std::span<const Request> requests,
                        std::uint64_t sequence) noexcept;
  // `n` operations from `number` on.
  void started(std::uint64_t number, std::size_t n) noexcept;
  void completed(Lane& lane, std::uint64_t number, std::span<const Request> requests) noexcept;
  void failed(std::uint64_t number, std::size_t n, std::string_view error);

  // Without rank, host, reason and failure.
  FlightLog snapshot() const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> word{0};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::int64_t> collective{-1};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint32_t> lane{0};
    std::atomic<std::int32_t> peer{-1};
    std::atomic<std::int16_t> kind{0};
    std::atomic<std::int16_t> part_of{-1};
    std::atomic<std::int16_t> dtype{0};
    std::atomic<std::int16_t> op{0};
    std::atomic<std::int64_t> enqueued{0};  // in ticks, as the next two
    std::atomic<std::int64_t> started{0};
    std::atomic<std::int64_t> finished{0};
  };

  Slot& slot(std::uint64_t number) noexcept { return slots_[number % flight_capacity]; }
  static bool claim(Slot& entry, std::uint64_t number) noexcept;
  void advance(std::uint64_t number, std::atomic<std::int64_t> Slot::*time, std::int64_t now,
               std::uint64_t state) noexcept;
  // Times are still ticks; the second is the lane's.
  static std::optional<std::pair<FlightOperation, std::uint32_t>> read(const Slot& slot);

  const FlightClock clock_;
  std::atomic<std::uint64_t> next_{0};
  std::array<Slot, flight_capacity> slots_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::uint32_t next_lane_ = 0;
  std::vector<std::pair<std::uint64_t, std::string>> errors_;  // of the last numbers that failed
};

}  // namespace atoll_v1::atoll
