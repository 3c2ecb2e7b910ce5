// The bytes that the operations of one lane may hold at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Decides by the order of calls alone, which is the same on all ranks, and never by the clock.
class InFlight {
 public:
  InFlight(std::string_view lane, std::uint64_t limit) : lane_(lane), limit_(limit) {}

  // Before an operation of `bytes` is put on the stream, which is made to wait until they fit.
  void admit(std::uint64_t bytes, Stream& stream);
  // Of the operation that was admitted last and came to nothing.
  void withdraw() noexcept;
  // See Scheduler::release().
  void release(const Event& after);

 private:
  struct Held {
    std::uint64_t bytes = 0;
    std::optional<Event> free{};  // unset: not released
  };

  std::string_view lane_;
  std::uint64_t limit_;  // 0: none, and nothing is held
  std::deque<Held> held_;
  std::uint64_t bytes_ = 0;   // of all that are held
  std::size_t released_ = 0;  // the first so many of them
};

}  // namespace atoll_v1::atoll
