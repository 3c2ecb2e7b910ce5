#include "device/cuda/api.hpp"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace atoll_v1::atoll::cuda {
namespace {

// A pool of unused CUDA events, by device and kind. The pool is never destroyed, because the CUDA
// runtime may end first.
struct Pool {
  std::mutex mutex;
  std::map<std::pair<int, PooledEvent::Kind>, std::vector<cudaEvent_t>> free;
};

Pool& pool() {
  static auto* const pool = new Pool;
  return *pool;
}

}  // namespace

PooledEvent::PooledEvent(int ordinal, Kind kind) : ordinal_(ordinal), kind_(kind) {
  {
    const std::lock_guard lock(pool().mutex);
    auto& free = pool().free[{ordinal, kind}];
    if (!free.empty()) {
      event_ = free.back();
      free.pop_back();
      return;
    }
  }
  const Current current(ordinal);
  const unsigned flags = kind == Kind::time ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
}

PooledEvent::PooledEvent(PooledEvent&& other) noexcept
    : ordinal_(other.ordinal_), kind_(other.kind_), event_(std::exchange(other.event_, nullptr)) {}

PooledEvent::~PooledEvent() {
  if (!event_) return;
  const std::lock_guard lock(pool().mutex);
  pool().free[{ordinal_, kind_}].push_back(event_);
}

bool PooledEvent::happened() const {
  const Current current(ordinal_);
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears cudaErrorNotReady, which is no failure
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}

}  // namespace atoll_v1::atoll::cuda
