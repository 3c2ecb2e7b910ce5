// Reports why std::terminate ends this process, for example because nothing catches an exception.
#pragma once

#include <functional>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// While an object of this class exists, std::terminate first calls its callback with the reason,
// and waits for the callback for at most 5 s. The callback runs on another thread, because the
// thread that terminates may hold any lock. Then the earlier terminate handler runs. The first
// object of a process installs the handler that does this.
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
