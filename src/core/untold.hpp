// Unobserved errors: for example, a task failed, and the program never synchronized with its
// stream, so no call threw the error.
#pragma once

#include <functional>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// While an object of this class exists, report_untold() calls its callback, which fails a World.
// The callback returns false if this World had failed before.
class UntoldNotice {
 public:
  using Callback = std::function<bool(std::string_view text)>;
  explicit UntoldNotice(Callback callback);
  ~UntoldNotice();
  UntoldNotice(const UntoldNotice&) = delete;
  UntoldNotice& operator=(const UntoldNotice&) = delete;

 private:
  Callback callback_;
};

// Fails every World of this process, because a stream does not know which World it belongs to. Logs
// the text, unless all of them had failed before: then the program knows an earlier reason.
void report_untold(std::string_view text) noexcept;

// While an object of this class exists on a thread, errors that the thread receives from streams
// and events do not count as told. For destructors that wait and ignore failures.
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

}  // namespace atoll_v1::atoll
