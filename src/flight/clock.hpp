// Time stamps at the cost of one instruction, where the machine has it.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace atoll_v1::atoll {

// Ticks are the time stamp counter where the kernel itself keeps its time by it, which it does only
// when the counter is steady and the same on all cores (9 ns, where clock_gettime takes 27); else
// they are ns of the steady clock.
class FlightClock {
 public:
  FlightClock();

  std::int64_t ticks() const noexcept {
#if defined(__x86_64__)
    if (counts_) return static_cast<std::int64_t>(__rdtsc());
#endif
    return steady_ns();
  }

  // From ticks to ns of the steady clock, between the making of the clock and that of the scale:
  // the rate is what was measured between the two, so that no stamp falls outside of them.
  class Scale {
   public:
    std::int64_t ns(std::int64_t ticks) const noexcept;
    std::int64_t now_ns() const noexcept { return last_.ns; }

   private:
    friend class FlightClock;
    struct Point {
      std::int64_t ticks = 0;
      std::int64_t ns = 0;
    };
    Point first_;
    Point last_;
  };
  Scale scale() const noexcept;

 private:
  static std::int64_t steady_ns() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  Scale::Point look() const noexcept;

  bool counts_ = false;
  Scale::Point start_;
};

}  // namespace atoll_v1::atoll
