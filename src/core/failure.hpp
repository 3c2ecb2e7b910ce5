// Whether the job has failed, why, and who wants to know. Shared by World, its store and every
// subscription. Any thread may call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

class Failure {
 public:
  using Callback = std::function<void(const Error&)>;

  // The first failure stays; a later one does nothing and gives false. The recorder announces next.
  bool record(const Error& error);
  // Runs the callbacks, on this thread. Whoever unsubscribes between the two is not called.
  void announce();

  std::optional<Error> get() const;
  void check() const;

  // Calls `callback` at once, on this thread, if the job has failed already. The result is for
  // unsubscribe().
  std::uint64_t subscribe(Callback callback);
  // Afterwards the callback does not run; waits for a call under way, except from that call itself.
  void unsubscribe(std::uint64_t id);

 private:
  struct Subscriber {
    Callback callback;
    std::thread::id runner;  // of the call under way; none: not running
  };
  void call(std::unique_lock<std::mutex>& lock, Subscriber& subscriber, const Error& error);

  std::atomic<bool> failed_{false};  // what check() looks at, before each operation
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::optional<Error> error_;
  std::map<std::uint64_t, std::shared_ptr<Subscriber>> subscribers_;
  std::uint64_t next_id_ = 1;
};

}  // namespace atoll_v1::atoll
