#include "flight/clock.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace atoll_v1::atoll {

FlightClock::FlightClock() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  counts_ = file >> source && source == "tsc";
#endif
  start_ = look();
}

// Reads the tick counter and the steady clock at nearly the same moment: makes several attempts and
// returns the attempt that took the shortest time.
FlightClock::Point FlightClock::look() const noexcept {
  constexpr int attempts = 5;
  Point best;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < attempts; ++i) {
    const std::int64_t before = ticks(), ns = steady_ns(), spent = ticks() - before;
    if (spent >= shortest) continue;
    shortest = spent;
    best = {before + spent / 2, ns};
  }
  return best;
}

std::int64_t FlightClock::Scale::ns(std::int64_t ticks) const noexcept {
  if (ticks >= last.ticks) return last.ns;
  const auto part = static_cast<double>(std::max<std::int64_t>(ticks - first.ticks, 0)) /
                    static_cast<double>(last.ticks - first.ticks);
  return first.ns + static_cast<std::int64_t>(part * static_cast<double>(last.ns - first.ns));
}

}  // namespace atoll_v1::atoll
