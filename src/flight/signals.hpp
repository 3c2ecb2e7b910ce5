// Signals of the flight recorder: SIGUSR1 writes the flight file. Another signal makes a thread
// record its own stack, so that a thread can take the stacks of other threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/flight.hpp"

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
  std::optional<std::size_t> place_;
};

// A thread of this process, and its role in the flight file.
struct FlightThread {
  int id = 0;  // thread id as gettid() returns it
  std::string role;
};

// The return addresses of a thread's stack, the innermost first.
struct RawStack {
  FlightThread thread;
  std::vector<void*> frames;
};

int this_thread() noexcept;

// Calls backtrace() once. Its first call loads a library, which a signal handler must not do.
void prepare_stacks() noexcept;

// Sends `signal` to the threads, except for the calling thread and threads that block the signal,
// and returns the stacks when all have recorded theirs, at the latest after `patience`. Returns
// nothing if the program handles or ignores the signal. Afterwards the signal has its default
// action again, unless a thread has not recorded its stack: then the handler stays until that
// thread has taken the signal, because the default action would end the process.
std::vector<RawStack> take_stacks(int signal, std::span<const FlightThread> threads,
                                  std::chrono::milliseconds patience);

// Names the frames: "function+0x1c (file)", or "file+0x1f20" where the file exports no name.
FlightStack named(const RawStack& stack);

}  // namespace atoll_v1::atoll
