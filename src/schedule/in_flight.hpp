// Limits the bytes that operations of one lane hold at the same time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Decisions depend only on the order of calls, which is the same on all ranks, and never on time.
class InFlight {
 public:
  InFlight(std::string_view lane, std::uint64_t limit) : lane_(lane), limit_(limit) {}

  // Call before enqueuing an operation of `bytes`: makes the stream wait until they fit.
  // Error(invalid_argument) if they cannot fit before a further release().
  void admit(std::uint64_t bytes, Stream& stream);
  // Undoes the last admit(), because enqueuing its operation failed.
  void withdraw() noexcept;
  // Implements Scheduler::release().
  void release(const Event& after);

 private:
  struct Held {
    std::uint64_t bytes = 0;
    std::optional<Event> free{};  // the event of release(); unset before it
  };

  std::string_view lane_;
  std::uint64_t limit_;  // 0: no limit, nothing is counted
  std::deque<Held> held_;
  std::uint64_t bytes_ = 0;   // sum over held_
  std::size_t released_ = 0;  // the number of released operations, at the front of held_
};

}  // namespace atoll_v1::atoll
