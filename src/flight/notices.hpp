// Notices from one rank to other ranks of the job, such as "this communicator was aborted". They
// travel as questions of the store, which are answered even while a rank computes or hangs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// Any thread may call any function. A subject has the form NAME/NUMBER, where the number counts the
// subjects of this name: 0, 1, 2, ...
class Notices {
 public:
  // A callback must not block or call the store.
  using Callback = std::function<void(const std::string& text)>;

  explicit Notices(int rank) : rank_(rank) {}

  // Calls `callback` for every notice about `subject`, and at once if a notice arrived before. A
  // subject has one callback and no line breaks. The subjects of one name must be expected in the
  // order of their numbers.
  void expect(const std::string& subject, Callback callback);
  // Removes the callback of `subject`, so that later notices about it are dropped. Waits for a call
  // in progress.
  void forget(const std::string& subject);
  // Delivers a question of the store. Returns false if the question is not a notice. Drops a notice
  // that is for other ranks.
  bool deliver(std::string_view question);
  // Number of notices that wait for expect().
  std::size_t waiting() const;

 private:
  bool was_expected(std::string_view subject) const;

  const int rank_;
  // Guards the members below, and is held during a callback. It is recursive, because a callback
  // may release the last reference to an object whose destructor calls forget().
  mutable std::recursive_mutex mutex_;
  std::map<std::string, Callback, std::less<>> callbacks_;
  std::map<std::string, std::string, std::less<>> early_;  // notices that arrived before expect()
  // The next number of each name that expect() has not seen.
  std::map<std::string, std::uint64_t, std::less<>> next_;
};

struct Notice {
  std::string subject;
  std::string text;
};
// Sends a notice to `ranks`. Returns when they have received it, or after `patience`. Throws the
// errors of the store.
void send_notice(World& world, std::span<const int> ranks, const Notice& notice,
                 std::chrono::milliseconds patience);

}  // namespace atoll_v1::atoll
