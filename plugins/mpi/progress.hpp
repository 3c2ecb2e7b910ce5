// Waiting for MPI. Requests are posted and then tested, never waited for inside MPI, so that abort()
// and deadlines are noticed and ranks can share cores.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "session.hpp"

namespace atoll_mpi {

// The pauses between two tests of one operation, and their time limit.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // A timeout of 0 or less means no limit.
  Backoff(const std::atomic<bool>& aborted, std::int64_t timeout_ns);
  // Call it between two tests. Spins at first, then yields, then sleeps for increasing times of up
  // to 100 us. Throws Error(ATOLL_ABORTED) or Error(ATOLL_TIMEOUT).
  void pause();
  // Restarts the backoff after progress.
  void refresh() noexcept;

 private:
  const std::atomic<bool>& aborted_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  Clock::time_point idle_since_;
  int spins_ = 0;
};

// Requests in flight. If waiting failed, destruction abandons them. MPI cannot cancel a collective,
// so the buffers of abandoned requests must outlive MPI's last call in this process.
class Requests {
 public:
  explicit Requests(Session& session) : session_(session) {}

  // post_call(MPI_Request*) makes one nonblocking call; error texts name it `call`.
  template <class Post>
  void post(const char* call, Post&& post_call) {
    const auto lock = session_.lock();
    MPI_Request request = MPI_REQUEST_NULL;
    check(std::forward<Post>(post_call)(&request), call);
    requests_.push_back(request);
  }
  void wait(Backoff& backoff);
  // Bytes received by the i-th posted request, a receive of elements of `type`. Call it after wait().
  std::uint64_t received_bytes(std::size_t i, MPI_Datatype type) const;

 private:
  bool test();

  Session& session_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace atoll_mpi
