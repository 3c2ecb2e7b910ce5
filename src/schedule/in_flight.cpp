#include "schedule/in_flight.hpp"

#include "atoll/error.hpp"
#include "schedule/invalid.hpp"

namespace atoll_v1::atoll {

void InFlight::admit(std::uint64_t bytes, Stream& stream) {
  if (limit_ == 0) return;
  while (!held_.empty() && (bytes > limit_ || bytes_ > limit_ - bytes)) {
    if (released_ == 0) {
      throw invalid(
          "Scheduler: {} more bytes do not fit on the lane {}, which has {} of at most {} bytes in "
          "flight: call release() first",
          bytes, lane_, bytes_, limit_);
    }
    stream.wait(*held_.front().free);
    bytes_ -= held_.front().bytes;
    held_.pop_front();
    --released_;
  }
  held_.push_back({.bytes = bytes});
  bytes_ += bytes;
}

void InFlight::withdraw() noexcept {
  if (limit_ == 0) return;
  bytes_ -= held_.back().bytes;
  held_.pop_back();
}

void InFlight::release(const Event& after) {
  if (limit_ == 0) return;
  if (released_ == held_.size()) {
    throw invalid("Scheduler: release() on the lane {} without an unreleased operation", lane_);
  }
  held_[released_++].free = after;
}

}  // namespace atoll_v1::atoll
