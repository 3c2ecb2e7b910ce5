// Time stamps that cost one instruction on machines with a steady counter.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace atoll_v1::atoll {

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

}  // namespace atoll_v1::atoll
