// Limits the bytes of memory that the operations of one lane occupy at the same time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Whether an operation must wait depends only on the order of calls, which is the same on all
// ranks, and never on time.
class InFlight {
 public:
  InFlight(std::string_view lane, std::uint64_t limit) : lane_(lane), limit_(limit) {}

  // Must be called before an operation of `bytes` bytes is enqueued. Makes `stream` wait until the
  // operation fits. Throws Error(invalid_argument) if it cannot fit without a further release().
  void admit(std::uint64_t bytes, Stream& stream);
  // Undoes the last admit() after its operation could not be enqueued.
  void withdraw() noexcept;
  // Implements Scheduler::release().
  void release(const Event& after);

 private:
  struct Held {
    std::uint64_t bytes = 0;
    std::optional<Event> free{};  // event given to release(); unset before release()
  };

  std::string_view lane_;
  std::uint64_t limit_;  // 0 means that there is no limit
  std::deque<Held> held_;
  std::uint64_t bytes_ = 0;   // sum of the bytes in held_
  std::size_t released_ = 0;  // number of released operations at the front of held_
};

}  // namespace atoll_v1::atoll
