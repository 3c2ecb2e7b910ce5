#include "progress.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "sdk/backend.hpp"

namespace atoll_mpi {
namespace {

using std::chrono::microseconds;

constexpr int spin_tests = 64;
constexpr microseconds yield_for{500};
constexpr microseconds longest_sleep{100};

}  // namespace

Backoff::Backoff(const std::atomic<bool>& aborted, std::int64_t timeout_ns)
    : aborted_(aborted),
      start_(Clock::now()),
      deadline_(timeout_ns > 0 ? start_ + std::chrono::nanoseconds(timeout_ns)
                               : Clock::time_point::max()),
      idle_since_(start_) {}

void Backoff::pause() {
  if (aborted_.load(std::memory_order_relaxed))
    throw Error(ATOLL_ABORTED, "the communicator was aborted");
  if (++spins_ <= spin_tests) return;
  const auto now = Clock::now();
  if (now >= deadline_) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - start_);
    throw Error(ATOLL_TIMEOUT,
                "the operation was not complete after " + std::to_string(waited.count()) + " ms");
  }
  const auto idle = std::chrono::duration_cast<microseconds>(now - idle_since_);
  if (idle < yield_for) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::min(idle / 16, longest_sleep));
  }
}

void Backoff::refresh() noexcept {
  spins_ = 0;
  idle_since_ = Clock::now();
}

void Requests::wait(Backoff& backoff) {
  backoff.refresh();
  while (!test()) backoff.pause();
}

bool Requests::test() {
  statuses_.resize(requests_.size());
  int done = 0;
  const auto lock = session_.lock();
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) check(status.MPI_ERROR, "MPI_Testall");
    }
  }
  check(code, "MPI_Testall");
  return done != 0;
}

std::uint64_t Requests::received_bytes(std::size_t i, MPI_Datatype type) const {
  const auto lock = session_.lock();
  MPI_Count bytes = 0;
  check(MPI_Get_elements_x(&statuses_[i], type, &bytes), "MPI_Get_elements_x");
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace atoll_mpi
