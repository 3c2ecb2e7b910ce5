// Turns SIGUSR1 into an event that a thread can wait for.
#pragma once

#include <cstdint>

namespace atoll_v1::atoll {

// While a FlightSignal exists, every SIGUSR1 of the process adds `value` to its eventfd. The first
// object installs the handler, unless the program has its own handler, which stays; the log says
// so. The last object restores the default handler, unless the program has installed another one
// since. At most 64 objects receive signals at a time.
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
