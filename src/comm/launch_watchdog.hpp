// Observes the operations that a communicator has launched on a device, until they are complete.
//
// The return of a launch says nothing about its end: kernels wait forever for a rank that never
// comes, a backend reports later failures elsewhere, and an aborted operation looks complete to its
// stream. So a thread polls the events before and after each operation. It reports start and end to
// the flight recorder, and fails an operation that takes longer than the timeout, which counts from
// the moment when the stream reached it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/operation.hpp"

namespace atoll_v1::atoll {

class LaunchWatchdog {
 public:
  struct Launch {
    std::vector<Operation> operations;  // launched as one group of the backend
    std::uint64_t collectives;          // number of operations that are not send or recv
    std::uint64_t sequence;             // number of the first operation on its communicator
    std::uint64_t number;               // number of the first operation in the flight recorder
    std::shared_ptr<Work::State> state;
    Event reached;  // happens when the stream reaches the operations
    Event done;     // happens when they are complete or aborted
  };

  // Implemented by the communicator, and called from the watchdog's thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A failure that the backend noticed after a launch, with its reason; ATOLL_OK if none.
    virtual std::pair<atoll_status, std::string> async_error() = 0;
    // Fails the World because of `launch`, or because of the device when `launch` is null.
    virtual void launch_failed(atoll_status status, const std::string& why,
                               const Launch* launch) = 0;
  };

  // The arguments must outlive the watchdog.
  LaunchWatchdog(Owner& owner, FlightRecorder& recorder, FlightTrack& track,
                 std::chrono::seconds timeout);
  ~LaunchWatchdog();  // does not wait for operations in flight
  LaunchWatchdog(const LaunchWatchdog&) = delete;
  LaunchWatchdog& operator=(const LaunchWatchdog&) = delete;

  void add(Launch launch);
  // Fails Work and stream of everything in flight, because the job has failed and none of it will
  // complete. Call it before the backend aborts. Operations added later fail at once.
  void fail(const Error& error);

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop);
  void watch_until(const std::stop_token& stop);
  // Removes launches that are complete. Returns true when the first one left has timed out. Throws
  // the error of the device.
  bool is_late(Clock::time_point now);
  bool backend_failed();  // reports the failure, if there is one
  void fail_first(atoll_status status, const std::string& why);

  Owner& owner_;
  FlightRecorder& recorder_;
  FlightTrack& track_;
  const std::chrono::seconds timeout_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable_any changed_;
  std::deque<Launch> launches_;               // in the order in which they run
  std::optional<Clock::time_point> started_;  // when the first launch was seen to be reached
  std::shared_ptr<Work::State> reported_;     // Work whose failure fail_first() reports
  std::optional<Error> failure_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll
