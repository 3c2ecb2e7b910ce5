// The time of day for dashboards.
#pragma once

#include <chrono>

namespace train {

// Seconds since 1970, in UTC.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace train
