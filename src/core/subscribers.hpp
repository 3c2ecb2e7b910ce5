// Callbacks of an event. Any thread may call any function, also from a callback.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {

template <class... Args>
class Subscribers {
 public:
  using Callback = std::function<void(const Args&...)>;

  // `event` names the function that registers the callbacks, for the log.
  explicit Subscribers(std::string_view event) : event_(event) {}

  // Returns the id of the callback for remove().
  std::uint64_t add(Callback callback) {
    const std::lock_guard lock(mutex_);
    const auto subscriber = std::make_shared<Subscriber>();
    subscriber->callback = std::move(callback);
    subscribers_.emplace(next_id_, subscriber);
    return next_id_++;
  }
  // Waits for a call of the callback in progress, unless it is called from that callback.
  void remove(std::uint64_t id) {
    // `subscriber` is declared before `lock`, so that the mutex is unlocked before the callback is
    // destroyed.
    std::shared_ptr<Subscriber> subscriber;
    std::unique_lock lock(mutex_);
    const auto found = subscribers_.find(id);
    if (found == subscribers_.end()) return;
    subscriber = found->second;
    subscribers_.erase(found);
    returned_.wait(lock, [&] {
      return subscriber->runner == std::thread::id() ||
             subscriber->runner == std::this_thread::get_id();
    });
  }
  // Calls the callbacks on this thread, the oldest first. Only one thread at a time may do so.
  void call(const Args&... args) {
    std::unique_lock lock(mutex_);
    // A callback runs with the mutex unlocked and may remove other callbacks. Therefore the next
    // callback is searched for in the map each time.
    for (std::uint64_t last = 0;;) {
      const auto next = subscribers_.upper_bound(last);
      if (next == subscribers_.end()) return;
      last = next->first;
      const std::shared_ptr<Subscriber> subscriber = next->second;
      subscriber->runner = std::this_thread::get_id();
      lock.unlock();
      call(subscriber->callback, args...);
      lock.lock();
      subscriber->runner = std::thread::id();
      returned_.notify_all();
    }
  }
  // Calls `callback` as call() does, although it is not registered.
  void call(const Callback& callback, const Args&... args) const {
    const void* const outer = std::exchange(calling_, this);
    try {
      callback(args...);
    } catch (const std::exception& problem) {
      log::error("a callback registered with {}() threw: {}", event_, text_of(problem));
    } catch (...) {
      log::error("a callback registered with {}() threw: {}", event_, foreign_exception);
    }
    calling_ = outer;
  }
  // Returns true if this thread runs a callback of this object.
  bool is_calling() const noexcept { return calling_ == this; }

 private:
  struct Subscriber {
    Callback callback;
    std::thread::id runner;  // thread that runs the callback; empty id if none does
  };

  static inline thread_local const void* calling_ = nullptr;  // object whose callback runs
  const std::string_view event_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::map<std::uint64_t, std::shared_ptr<Subscriber>> subscribers_;
  std::uint64_t next_id_ = 1;
};

}  // namespace atoll_v1::atoll
