// Errors that no call of the program has thrown, and that fail the Worlds of this process: the
// reason why std::terminate ends it, and unobserved errors. An error is unobserved if, for example,
// a task failed, and the program never synchronized with its stream.
#pragma once

#include <functional>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// While an object of this class exists, report_unobserved() calls its callback, which fails a World
// and returns false if this World had failed before. With `on_terminate`, std::terminate also calls
// the callbacks, in a handler that stays installed until the process ends. The handler calls them
// on another thread, because the thread that terminates may hold any lock, waits for them for at
// most 5 s, and then calls the earlier terminate handler.
class ProcessFailureHook {
 public:
  using Callback = std::function<bool(std::string_view text)>;
  ProcessFailureHook(Callback callback, bool on_terminate);
  ~ProcessFailureHook();
  ProcessFailureHook(const ProcessFailureHook&) = delete;
  ProcessFailureHook& operator=(const ProcessFailureHook&) = delete;

 private:
  Callback callback_;
};

// Fails every World of this process, because a stream does not know which World it belongs to. Logs
// the text, unless all of them had failed before: then the program knows an earlier reason.
void report_unobserved(std::string_view text) noexcept;

// While an object of this class exists on a thread, errors that the thread receives from streams
// and events do not count as observed. For destructors that wait and ignore failures.
class IgnoringErrors {
 public:
  IgnoringErrors() noexcept { ++depth; }
  ~IgnoringErrors() { --depth; }
  IgnoringErrors(const IgnoringErrors&) = delete;
  IgnoringErrors& operator=(const IgnoringErrors&) = delete;

  static bool on_this_thread() noexcept { return depth > 0; }

 private:
  static inline thread_local int depth = 0;
};

// Blocks until a stream, an event or all lanes have completed. Ignores failures: callers that
// waited for the failed work have received them, and an error that no caller has received stays
// unobserved.
template <class Work>
void settle(Work& work) noexcept {
  const IgnoringErrors ignoring;
  try {
    work.synchronize();
  } catch (...) {
    return;
  }
}

}  // namespace atoll_v1::atoll
