// Waits for MPI requests. Requests are posted and then tested repeatedly; no code waits inside MPI.
// Thus abort() and deadlines take effect, and ranks can share cores.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "session.hpp"

namespace atoll_mpi {

// Backoff paces the tests of an operation's requests and enforces the operation's time limit.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // A timeout of 0 or less means no limit.
  Backoff(const std::atomic<bool>& aborted, std::int64_t timeout_ns);
  // Pauses between two tests: at first it returns at once, then it yields, then it sleeps for
  // increasing times of up to 100 us. Throws Error(ATOLL_ABORTED) after an abort and
  // Error(ATOLL_TIMEOUT) at the deadline.
  void pause();
  // Restarts the sequence of pauses. Must be called after progress. The deadline does not change.
  void refresh() noexcept;

 private:
  const std::atomic<bool>& aborted_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  Clock::time_point idle_since_;
  int spins_ = 0;
};

// A set of MPI requests in flight. If wait() failed, the destructor abandons the requests. MPI
// cannot cancel a collective, so the buffers of abandoned requests must stay valid until this
// process has made its last MPI call.
class Requests {
 public:
  explicit Requests(Session& session) : session_(session) {}

  // Calls post_call(MPI_Request*), which must make one nonblocking MPI call. `call` is the name of
  // the MPI call for error texts.
  template <class Post>
  void post(const char* call, Post&& post_call) {
    const auto lock = session_.lock();
    MPI_Request request = MPI_REQUEST_NULL;
    check(std::forward<Post>(post_call)(&request), call);
    requests_.push_back(request);
  }
  void wait(Backoff& backoff);
  // Returns the number of bytes that the i-th posted request has received. The request must be a
  // receive of elements of `type`. Must be called after wait().
  std::uint64_t received_bytes(std::size_t i, MPI_Datatype type) const;

 private:
  bool test();

  Session& session_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace atoll_mpi
