#include "device/cuda/api.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "atoll/cuda/context.hpp"
#include "atoll/error.hpp"

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

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears CUDA's error, which later calls would report again
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::backend;
  throw Error(code, fmt::format("cuda: {}: {} ({})", what, cudaGetErrorString(status),
                                cudaGetErrorName(status)));
}

Current::Current(int ordinal) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ == ordinal) return;
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  changed_ = true;
}

Current::Current(int ordinal, std::nothrow_t) noexcept {
  changed_ = cudaGetDevice(&before_) == cudaSuccess && before_ != ordinal &&
             cudaSetDevice(ordinal) == cudaSuccess;
}

Current::~Current() {
  if (changed_ && atoll_abi::has_cuda_context(before_)) cudaSetDevice(before_);
}

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
