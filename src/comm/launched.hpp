// What a communicator of a GPU has launched, until it is done. A launch says nothing about the end:
// kernels wait for a rank that never comes as long as it takes, what goes wrong in them is asked
// for elsewhere, and to its stream an operation that was aborted looks complete. So a thread of its
// own looks at the events around each operation; it tells the flight recorder of beginning and end,
// and gives up what waits longer than the timeout, counted from when the stream got there.
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
#include <vector>

#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

class Launched {
 public:
  struct Operation {
    std::vector<Request> requests;  // launched as one
    std::uint64_t sequence;         // of the first on its communicator
    std::uint64_t number;           // of the first in the flight recorder
    std::shared_ptr<Work::State> state;
    Event reached;  // the stream is there
    Event done;     // complete, or aborted
  };

  // `impl` outlives it.
  explicit Launched(Communicator::Impl& impl);
  ~Launched();  // waits for nothing that is under way
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  void add(Operation operation);
  // The job has failed, so that what is under way ends without being done: its Work and its stream
  // fail. To be called before the backend aborts; whatever is added later fails at once.
  void fail(const Error& error);

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop);
  void watch_until(const std::stop_token& stop);
  // Those that are done go. True when the first that is left has taken too long. Throws what the
  // device says of itself.
  bool look(Clock::time_point now);
  // False when it knows of a failure, which has been told then.
  bool ask_backend();
  // The World fails because of the first operation, and with it everything that is under way.
  void give_up_first(atoll_status status, const std::string& why);

  Communicator::Impl& impl_;
  std::mutex mutex_;  // of what follows
  std::condition_variable_any changed_;
  std::deque<Operation> operations_;        // in the order in which they run
  std::optional<Clock::time_point> begun_;  // when the first was seen to be reached
  std::shared_ptr<Work::State> given_up_;
  std::optional<Error> failure_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll
