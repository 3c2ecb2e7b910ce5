// Notices from one rank to all ranks of the job, such as "this communicator was aborted". They
// travel as questions of the store, which are answered even while a rank computes or hangs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// Any thread may call any function.
class Notices {
 public:
  // A callback must not block or call the store.
  using Callback = std::function<void(const std::string& text)>;

  // Calls `callback` for every notice about `subject`, and at once if a notice arrived before. A
  // subject has one callback and no line breaks.
  void expect(const std::string& subject, Callback callback);
  // Removes the callback of `subject`. Waits for a call in progress.
  void forget(const std::string& subject);
  // Delivers a question of the store. Returns false if the question is not a notice.
  bool deliver(std::string_view question);

 private:
  // Guards the members below, and is held during a callback. It is recursive, because a callback
  // may release the last reference to an object whose destructor calls forget().
  std::recursive_mutex mutex_;
  std::map<std::string, Callback, std::less<>> callbacks_;
  std::map<std::string, std::string, std::less<>> early_;  // notices that arrived before expect()
};

// Sends a notice about `subject` to all ranks. Returns when they have received it, or after
// `patience`. Throws the errors of the store.
void send_notice(World& world, std::string_view subject, std::string_view text,
                 std::chrono::milliseconds patience);

}  // namespace atoll_v1::atoll
