// Waiting for MPI without holding anything up: requests are posted and tested, never waited for, so
// that abort() and deadlines are seen and ranks that outnumber the cores leave them to each other.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "session.hpp"

namespace atoll_sdk::mpi {

// How long one operation may wait, and how politely it does.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // A timeout of 0 or less means no limit.
  Patience(const std::atomic<bool>& aborted, std::int64_t timeout_ns);
  // Between two tests: spins, then yields, then sleeps longer and longer, up to 100 us. Throws
  // Error(ATOLL_ABORTED) or Error(ATOLL_TIMEOUT).
  void pause();
  // Progress was made: be quick again.
  void refresh() noexcept;

 private:
  const std::atomic<bool>& aborted_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  Clock::time_point idle_since_;
  int spins_ = 0;
};

// Requests under way. Those that are not complete at destruction, because waiting failed, are given
// up: MPI cannot cancel a collective, so their buffers must outlive MPI's last call in this
// process.
class Requests {
 public:
  explicit Requests(Session& session) : session_(session) {}

  // post(MPI_Request*) makes one nonblocking call, named `call` in messages.
  template <class Post>
  void post(const char* call, Post&& post_call) {
    const auto lock = session_.lock();
    MPI_Request request = MPI_REQUEST_NULL;
    check(std::forward<Post>(post_call)(&request), call);
    requests_.push_back(request);
  }
  void wait(Patience& patience);
  // Bytes that arrived at the i-th posted request, a receive of elements of `type`; after wait().
  std::uint64_t received_bytes(std::size_t i, MPI_Datatype type) const;

 private:
  bool test();

  Session& session_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace atoll_sdk::mpi
