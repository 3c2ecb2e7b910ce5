// The thread of a World that observes operations on GPUs, whose end no call reports: it polls the
// launches of every communicator, and the events that callbacks wait for.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

class Event;

// Something that the watchdog polls.
class Watched {
 public:
  virtual ~Watched() = default;
  // Returns false when there is nothing to poll until the next Watchdog::wake(). Must not throw.
  virtual bool poll() noexcept = 0;
};

// Any thread may call any function.
class Watchdog {
 public:
  // Returns the watchdog of the World. The first call starts its thread, which ends with the World
  // and the last object that holds the watchdog.
  static std::shared_ptr<Watchdog> of(World& world);

  Watchdog();
  ~Watchdog();  // calls the callbacks whose events have not happened
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  // Waits for a poll of `watched` in progress, unless it is called from that poll.
  void remove(Watched& watched);
  void wake();
  // Calls `callback` once, on the watchdog's thread, when the event has happened. It must not
  // throw.
  void then(const Event& event, std::function<void()> callback);
  // Runs `work` on the watchdog's thread. It must not throw.
  void run(std::function<void()> work);
  bool is_this_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  struct Callback {
    std::function<bool()> is_due;
    std::function<void()> call;
  };

  void serve(const std::stop_token& stop);
  bool poll_watched();
  bool call_due();

  std::mutex mutex_;  // guards the members below
  std::condition_variable_any changed_;
  std::vector<Watched*> watched_;
  const Watched* polled_ = nullptr;  // polled at the moment
  std::list<Callback> callbacks_;
  bool is_woken_ = false;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll
