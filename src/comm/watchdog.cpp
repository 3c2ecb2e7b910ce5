#include "comm/watchdog.hpp"

#include <algorithm>
#include <chrono>

#include "atoll/device.hpp"
#include "core/limits.hpp"
#include "device/backend.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// Interval of the polls. It limits how late a failure is noticed, and how inaccurate the times in
// the flight recorder are.
constexpr std::chrono::milliseconds poll_interval{2};

}  // namespace

std::shared_ptr<Watchdog> Watchdog::of(World& world) {
  return std::static_pointer_cast<Watchdog>(
      WorldInternals::companion(world, "watchdog", [] { return std::make_shared<Watchdog>(); }));
}

Watchdog::Watchdog()
    : thread_(start_thread([this](const std::stop_token& stop) { serve(stop); })) {}

Watchdog::~Watchdog() {
  thread_.request_stop();
  thread_.join();
  for (const Callback& callback : callbacks_) callback.call();
}

void Watchdog::add(Watched& watched) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(&watched);
}

void Watchdog::remove(Watched& watched) {
  std::unique_lock lock(mutex_);
  std::erase(watched_, &watched);
  if (!is_this_thread()) changed_.wait(lock, [&] { return polled_ != &watched; });
}

void Watchdog::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_all();
}

void Watchdog::then(const Event& event, std::function<void()> callback) {
  const auto is_due = [event] {
    try {
      return !event.backend() || event.backend()->peek();
    } catch (...) {
      return true;  // the device has failed, so the event will not happen
    }
  };
  {
    const std::lock_guard lock(mutex_);
    callbacks_.push_back({is_due, std::move(callback)});
  }
  wake();
}

void Watchdog::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    callbacks_.push_back({[] { return true; }, std::move(work)});
  }
  wake();
}

void Watchdog::serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const bool is_busy = poll_watched();
    const bool waits = call_due();
    std::unique_lock lock(mutex_);
    if (is_busy || waits) {
      changed_.wait_for(lock, stop, poll_interval, [&] { return is_woken_; });
    } else {
      changed_.wait(lock, stop, [&] { return is_woken_; });
    }
    is_woken_ = false;
  }
}

// A poll runs with the mutex unlocked, and may add and remove other objects.
bool Watchdog::poll_watched() {
  bool is_busy = false;
  std::unique_lock lock(mutex_);
  const std::vector<Watched*> all = watched_;
  for (Watched* const one : all) {
    if (std::ranges::find(watched_, one) == watched_.end()) continue;
    polled_ = one;
    lock.unlock();
    is_busy = one->poll() || is_busy;
    lock.lock();
    polled_ = nullptr;
    changed_.notify_all();
  }
  return is_busy;
}

// Returns true if callbacks remain.
bool Watchdog::call_due() {
  std::list<Callback> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(callbacks_);
  }
  for (auto next = all.begin(); next != all.end();) {
    const auto one = next++;
    if (!one->is_due()) continue;
    one->call();
    all.erase(one);
  }
  const std::lock_guard lock(mutex_);
  callbacks_.splice(callbacks_.begin(), all);
  return !callbacks_.empty();
}

}  // namespace atoll_v1::atoll
