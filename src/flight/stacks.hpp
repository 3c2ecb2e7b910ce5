// The stacks of threads of this process, taken from outside: a signal makes each thread record its
// own frames.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// A thread of this process, and what it is to the flight recorder.
struct FlightThread {
  int id = 0;  // as gettid() returns it
  std::string role;
};

// Addresses of code, the innermost first.
struct RawStack {
  FlightThread thread;
  std::vector<void*> frames;
};

// Returns the id of the calling thread.
int this_thread() noexcept;

// Loads what the signal handler needs, because a handler may not load it.
void prepare_stacks() noexcept;

// Sends `signal` to the threads, except for the calling one, and returns the stacks of those that
// record them within `patience`. The program keeps a handler of its own for the signal: the result
// is then empty. The default of the signal comes back, unless a thread blocks the signal: the
// handler then stays until the late signal has come, which would otherwise end the process.
std::vector<RawStack> take_stacks(int signal, std::span<const FlightThread> threads,
                                  std::chrono::milliseconds patience);

// Names the frames: "function+0x1c (file)", or "file+0x1f20" where the file exports no name.
FlightStack named(const RawStack& stack);

}  // namespace atoll_v1::atoll
