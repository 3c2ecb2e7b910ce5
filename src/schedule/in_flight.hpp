// Limits the bytes of memory that the operations of one lane occupy at the same time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "atoll/device.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll {

// Whether an operation must wait depends only on the order of calls, which is the same on all
// ranks, and never on time.
class InFlight {
 public:
  InFlight(std::string_view lane, std::uint64_t limit) : lane_(lane), limit_(limit) {}

  // Must be called before an operation of `bytes` bytes is enqueued. Makes `stream` wait until the
  // operation fits. Throws Error(invalid_argument) if it cannot fit without a further release().
  void admit(std::uint64_t bytes, Stream& stream) {
    if (limit_ == 0) return;
    while (!held_.empty() && (bytes > limit_ || bytes_ > limit_ - bytes)) {
      require(released_ > 0,
              "Scheduler: {} more bytes do not fit on the lane {}, which has {} of at most {} "
              "bytes in flight: call release() first",
              bytes, lane_, bytes_, limit_);
      stream.wait(*held_.front().free);
      bytes_ -= held_.front().bytes;
      held_.pop_front();
      --released_;
    }
    held_.push_back({.bytes = bytes});
    bytes_ += bytes;
  }
  // Undoes the last admit() after its operation could not be enqueued.
  void withdraw() noexcept {
    if (limit_ == 0) return;
    bytes_ -= held_.back().bytes;
    held_.pop_back();
  }
  // Implements Scheduler::release().
  void release(const Event& after) {
    if (limit_ == 0) return;
    require(released_ < held_.size(),
            "Scheduler: release() on the lane {} without an unreleased operation", lane_);
    held_[released_++].free = after;
  }

 private:
  struct Held {
    std::uint64_t bytes = 0;
    std::optional<Event> free{};  // event that was passed to release(); empty before
  };

  std::string_view lane_;
  std::uint64_t limit_;  // limit on the bytes in flight; 0 means no limit
  std::deque<Held> held_;
  std::uint64_t bytes_ = 0;   // bytes that all operations in held_ occupy
  std::size_t released_ = 0;  // number of released operations at the front of held_
};

}  // namespace atoll_v1::atoll
