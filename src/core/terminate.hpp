// Reports why std::terminate ends this process, such as an exception that nobody catches.
#pragma once

#include <functional>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// While an object of this class exists, std::terminate first calls its callback with the reason, on
// another thread, and waits for it at most 5 s: the calling thread may hold any lock. Then the
// handler runs that was installed before. The first object of a process installs the handler.
class TerminateNotice {
 public:
  explicit TerminateNotice(std::function<void(std::string_view reason)> callback);
  ~TerminateNotice();
  TerminateNotice(const TerminateNotice&) = delete;
  TerminateNotice& operator=(const TerminateNotice&) = delete;

 private:
  std::function<void(std::string_view)> callback_;
};

}  // namespace atoll_v1::atoll
