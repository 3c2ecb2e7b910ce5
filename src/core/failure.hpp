// The first failure of the job and the callbacks to run when it happens. Shared by World, its store
// and every subscription. Any thread may call any function.
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

  // Records the first failure and returns true; the caller must then call announce(). Later
  // failures are ignored and return false.
  bool record(const Error& error);
  // Runs the callbacks on this thread, except those unsubscribed since record().
  void announce();

  std::optional<Error> get() const;
  void check() const;

  // Registers a callback and returns its id for unsubscribe(). If the job has already failed, calls
  // it at once on this thread.
  std::uint64_t subscribe(Callback callback);
  // Removes a callback. Waits for a call in progress, unless it is called from that callback.
  void unsubscribe(std::uint64_t id);
  // Returns true if this thread runs a callback of this object.
  bool is_calling() const noexcept { return calling_ == this; }

 private:
  struct Subscriber {
    Callback callback;
    std::thread::id runner;  // thread that runs the callback; empty id if none does
  };
  void call(std::unique_lock<std::mutex>& lock, Subscriber& subscriber, const Error& error);

  static inline thread_local const Failure* calling_ = nullptr;  // object whose callback runs
  std::atomic<bool> failed_{false};  // lets check() look for a failure without the lock
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::optional<Error> error_;
  std::map<std::uint64_t, std::shared_ptr<Subscriber>> subscribers_;
  std::uint64_t next_id_ = 1;
};

}  // namespace atoll_v1::atoll
