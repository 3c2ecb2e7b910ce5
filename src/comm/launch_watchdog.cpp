#include "comm/launch_watchdog.hpp"

#include <fmt/format.h>

#include "comm/backend_communicator.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace std::chrono_literals;

// Interval at which the events of operations are polled. It limits how late a failure is noticed
// and how inaccurate times in the flight recorder are.
constexpr auto poll_interval = 2ms;
constexpr auto backend_poll_interval = 50ms;

}  // namespace

LaunchWatchdog::LaunchWatchdog(BackendCommunicator& owner, FlightRecorder& recorder,
                               FlightTrack& track, std::chrono::milliseconds timeout)
    : owner_(owner),
      recorder_(recorder),
      track_(track),
      timeout_(timeout),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

LaunchWatchdog::~LaunchWatchdog() = default;

void LaunchWatchdog::add(Launch launch) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      launches_.push_back(std::move(launch));
      changed_.notify_one();
      return;
    }
  }
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
  changed_.notify_one();
}

void LaunchWatchdog::await_finished() {
  const Clock::time_point end = Clock::now() + 10 * poll_interval;
  std::unique_lock lock(mutex_);
  while (!launches_.empty() && !failure_ && Clock::now() < end) {
    lock.unlock();
    std::this_thread::sleep_for(poll_interval);
    lock.lock();
  }
}

void LaunchWatchdog::watch(const std::stop_token& stop) {
  try {
    watch_until(stop);
  } catch (const std::exception& error) {  // thrown when the device reports a failure
    fail_first(ATOLL_BACKEND, error.what());
  }
}

void LaunchWatchdog::watch_until(const std::stop_token& stop) {
  Clock::time_point next_backend_poll = Clock::now() + backend_poll_interval;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return failure_ || !launches_.empty(); })) return;
      if (failure_) return;
    }
    const Clock::time_point now = Clock::now();
    const bool late = is_late(now);
    if (stop.stop_requested()) return;  // the destructor does not wait for operations in flight
    if (late) {
      return fail_first(
          ATOLL_TIMEOUT,
          fmt::format("the operation is not complete {} s after its stream reached it",
                      std::chrono::duration<double>(timeout_).count()));
    }
    if (now >= next_backend_poll) {
      next_backend_poll = now + backend_poll_interval;
      if (const auto [status, why] = owner_.async_error(); status != ATOLL_OK) {
        return fail_first(status, why);
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, poll_interval, [&] { return failure_.has_value(); });
  }
}

// Polls events without holding the lock. The poll may wait until the backend has aborted; the abort
// follows fail(), and fail() needs the lock.
bool LaunchWatchdog::is_late(Clock::time_point now) {
  while (true) {
    std::unique_lock lock(mutex_);
    if (launches_.empty()) return false;
    const std::uint64_t number = launches_.front().number;
    const Event reached = launches_.front().reached, done = launches_.front().done;
    const bool started = started_.has_value();
    lock.unlock();
    const bool is_reached = started || reached.backend()->peek();
    const bool is_done = is_reached && done.backend()->peek();
    lock.lock();
    const bool removed = failure_ || launches_.empty() || launches_.front().number != number;
    if (removed || !is_reached) return false;
    const Launch& first = launches_.front();
    if (!started) {
      started_ = now;
      recorder_.started(first.number, first.operations.size());
    }
    if (!is_done) return now - *started_ >= timeout_;
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
