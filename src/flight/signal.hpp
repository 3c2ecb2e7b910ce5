// SIGUSR1 as an event that a thread can wait for.
#pragma once

#include <cstdint>

namespace atoll_v1::atoll {

// While one exists, a SIGUSR1 of the process adds `value` to the eventfd. The first one installs
// the handler, unless the program has one of its own: that stays, with a line in the log. The last
// one gives the signal back, unless somebody has taken it since. At most 64 at a time; more get
// nothing.
class FlightSignal {
 public:
  FlightSignal(int eventfd, std::uint64_t value);
  ~FlightSignal();
  FlightSignal(const FlightSignal&) = delete;
  FlightSignal& operator=(const FlightSignal&) = delete;

 private:
  int place_ = -1;
};

}  // namespace atoll_v1::atoll
