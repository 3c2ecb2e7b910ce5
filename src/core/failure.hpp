// The first failure of a job, the ranks that are gone, and the callbacks that report both.
// Shared by World, its store and every subscription. Any thread may call any function.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "atoll/error.hpp"
#include "core/subscribers.hpp"

namespace atoll_v1::atoll {

class Failure {
 public:
  using Callback = Subscribers<Error>::Callback;

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
  void unsubscribe(std::uint64_t id) { subscribers_.remove(id); }
  // Returns true if this thread runs a callback of this object.
  bool is_calling() const noexcept { return subscribers_.is_calling(); }

 private:
  std::atomic<bool> failed_{false};  // lets check() look for a failure without the lock
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  Subscribers<Error> subscribers_{"on_failure"};
};

// The ranks that have left the job or were lost while the job goes on.
class Departures {
 public:
  using Callback = Subscribers<int, Error>::Callback;

  // Records that a rank is gone, and runs the callbacks on this thread.
  void record(int rank, const Error& why);
  std::map<int, Error> all() const;
  // Returns when record() was called for a rank that is gone.
  std::chrono::steady_clock::time_point time_of(int rank) const;

  // Registers a callback, which is called once for each rank that goes, and returns its id for
  // unsubscribe(). Calls it for the ranks that are gone before it returns.
  std::uint64_t subscribe(Callback callback);
  void unsubscribe(std::uint64_t id) { subscribers_.remove(id); }

 private:
  mutable std::mutex mutex_;
  std::map<int, Error> gone_;
  std::map<int, std::chrono::steady_clock::time_point> times_;
  Subscribers<int, Error> subscribers_{"on_departure"};
};

}  // namespace atoll_v1::atoll
