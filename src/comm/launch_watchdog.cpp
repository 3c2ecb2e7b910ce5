#include "comm/launch_watchdog.hpp"

#include <fmt/format.h>

#include "comm/backend_communicator.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace std::chrono_literals;

constexpr auto backend_poll_interval = 50ms;
// Time in which the watchdog notices that an operation is complete.
constexpr auto notice_patience = 20ms;

}  // namespace

LaunchWatchdog::LaunchWatchdog(BackendCommunicator& owner, FlightRecorder& recorder,
                               FlightTrack& track)
    : owner_(owner), recorder_(recorder), track_(track), watchdog_(Watchdog::of(owner.world())) {
  watchdog_->add(*this);
}

LaunchWatchdog::~LaunchWatchdog() { watchdog_->remove(*this); }

void LaunchWatchdog::add(Launch launch) {
  std::unique_lock lock(mutex_);
  if (!failure_) {
    const bool was_idle = launches_.empty();
    launches_.push_back(std::move(launch));
    lock.unlock();
    if (was_idle) watchdog_->wake();
    return;
  }
  lock.unlock();
  launch.state->fail(*failure_);
  launch.done.backend()->fail(std::make_exception_ptr(*failure_));
}

void LaunchWatchdog::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = error;
  // This function must not call the device: such a call could wait for operations that end only
  // with the abort that follows.
  for (const Launch& launch : launches_) {
    // Only an operation that has started is recorded as failed. Later operations stay recorded as
    // enqueued.
    if (std::exchange(started_, std::nullopt)) {
      recorder_.failed(launch.number, launch.operations.size(), error.what());
    }
    // The operation that fail_first() reports is left out: its Work gets a more precise error
    // there.
    if (launch.state != reported_) launch.state->fail(error);
    launch.done.backend()->fail(std::make_exception_ptr(error));
  }
  launches_.clear();
}

void LaunchWatchdog::await_finished() {
  if (watchdog_->is_this_thread()) return;
  const Clock::time_point end = Clock::now() + notice_patience;
  std::unique_lock lock(mutex_);
  while (!launches_.empty() && !failure_ && Clock::now() < end) {
    lock.unlock();
    std::this_thread::sleep_for(1ms);
    lock.lock();
  }
}

bool LaunchWatchdog::poll() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || reported_ || launches_.empty()) return false;
  }
  try {
    const Clock::time_point now = Clock::now();
    if (const auto limit = overdue(now)) {
      fail_first(ATOLL_TIMEOUT,
                 fmt::format("the operation is not complete {} s after its stream reached it",
                             std::chrono::duration<double>(*limit).count()));
    } else if (now >= next_backend_poll_) {
      next_backend_poll_ = now + backend_poll_interval;
      if (const auto [status, why] = owner_.async_error(); status != ATOLL_OK)
        fail_first(status, why);
    }
  } catch (const std::exception& error) {  // thrown when the device reports a failure
    fail_first(ATOLL_BACKEND, error.what());
  }
  return true;
}

// Polls events without holding the lock. The poll may wait until the backend has aborted; the abort
// follows fail(), and fail() needs the lock.
std::optional<std::chrono::nanoseconds> LaunchWatchdog::overdue(Clock::time_point now) {
  while (true) {
    std::unique_lock lock(mutex_);
    if (launches_.empty()) return std::nullopt;
    const std::uint64_t number = launches_.front().number;
    const Event reached = launches_.front().reached, done = launches_.front().done;
    const bool started = started_.has_value();
    lock.unlock();
    const bool is_reached = started || reached.backend()->peek();
    const bool is_done = is_reached && done.backend()->peek();
    lock.lock();
    const bool removed = failure_ || launches_.empty() || launches_.front().number != number;
    if (removed || !is_reached) return std::nullopt;
    const Launch& first = launches_.front();
    if (!started) {
      started_ = now;
      recorder_.started(first.number, first.operations.size());
    }
    if (!is_done && now - *started_ < first.timeout) return std::nullopt;
    if (!is_done) return first.timeout;
    recorder_.completed(track_, first.number, first.operations.size(), first.collectives);
    started_.reset();
    launches_.pop_front();
  }
}

void LaunchWatchdog::fail_first(atoll_status status, const std::string& why) {
  std::optional<Launch> launch;
  {
    const std::lock_guard lock(mutex_);
    if (!launches_.empty()) {
      launch = launches_.front();
      reported_ = launch->state;
    }
  }
  owner_.launch_failed(status, why, launch ? &*launch : nullptr);
}

}  // namespace atoll_v1::atoll
