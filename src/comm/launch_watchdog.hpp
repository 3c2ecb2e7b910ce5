// Observes the operations that a communicator has launched on a GPU, until they are complete.
//
// A successful launch does not mean that the operation will end well: its kernel waits forever for
// a rank that does not call the operation, the backend reports failures later through
// async_error(), and an aborted operation looks complete to its stream. So the watchdog of the
// World polls the events before and after each operation. It reports start and end to the flight
// recorder, and fails an operation that takes longer than its time limit, which begins when the
// stream reaches the operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/operation.hpp"
#include "comm/watchdog.hpp"

namespace atoll_v1::atoll {

class BackendCommunicator;

class LaunchWatchdog final : public Watched {
 public:
  struct Launch {
    std::vector<Operation> operations;  // operations that were launched as one group of the backend
    std::uint64_t collectives;          // number of operations other than send and recv
    std::uint64_t sequence;             // number of the first operation on its communicator
    std::uint64_t number;               // number of the first operation in the flight recorder
    std::chrono::nanoseconds timeout;
    std::shared_ptr<Work::State> state;
    Event reached;  // event that happens when the stream reaches the operations
    Event done;     // event that happens when the operations are complete or aborted
  };

  // The arguments must outlive the watchdog.
  LaunchWatchdog(BackendCommunicator& owner, FlightRecorder& recorder, FlightTrack& track);
  ~LaunchWatchdog() override;  // does not wait for operations in flight
  LaunchWatchdog(const LaunchWatchdog&) = delete;
  LaunchWatchdog& operator=(const LaunchWatchdog&) = delete;

  void add(Launch launch);
  // Blocks for at most ten polls, in which the watchdog notices operations that are already
  // complete. Without this call, fail() would fail these operations and their streams.
  void await_finished();
  // Call this when the job has failed or the communicator was aborted, before the backend aborts.
  // Fails the Work and the stream of every operation in flight. Operations that are added later
  // fail at once.
  void fail(const Error& error);
  const std::shared_ptr<Watchdog>& watchdog() const noexcept { return watchdog_; }
  bool poll() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  // Removes complete launches. Returns the time limit of the first remaining launch if it has
  // passed. Throws the error of the device.
  std::optional<std::chrono::nanoseconds> overdue(Clock::time_point now);
  void fail_first(atoll_status status, const std::string& why);

  BackendCommunicator& owner_;
  FlightRecorder& recorder_;
  FlightTrack& track_;
  std::shared_ptr<Watchdog> watchdog_;
  Clock::time_point next_backend_poll_{};     // only poll() uses it
  std::mutex mutex_;                          // guards everything below
  std::deque<Launch> launches_;               // launches in the order of execution
  std::optional<Clock::time_point> started_;  // time at which the first launch was seen to start
  std::shared_ptr<Work::State> reported_;     // Work of the operation that fail_first() reports
  std::optional<Error> failure_;
};

}  // namespace atoll_v1::atoll
