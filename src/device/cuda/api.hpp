// The CUDA runtime, with errors as exceptions. The runtime is linked statically and finds the driver
// when it is first used, so that one binary runs with and without.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "device/backend.hpp"

namespace atoll_v1::atoll::cuda {

// Throws Error(out_of_memory, backend) with `what` and the runtime's words; success passes.
void check(cudaError_t status, std::string_view what);

// Of a cuda device's stream.
inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.backend().native());
}

// Makes a device the calling thread's for a scope.
class Current {
 public:
  explicit Current(int ordinal);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// A CUDA event that goes back to a pool of its kind: to make one costs more than to record it.
class PooledEvent {
 public:
  enum class Kind {
    order,  // cheaper to wait for
    time
  };
  PooledEvent(int ordinal, Kind kind);
  ~PooledEvent();
  PooledEvent(PooledEvent&& other) noexcept;
  PooledEvent& operator=(PooledEvent&&) = delete;

  cudaEvent_t get() const noexcept { return event_; }
  bool happened() const;  // of the last record; an event is recorded as soon as it is taken

 private:
  int ordinal_;
  Kind kind_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace atoll_v1::atoll::cuda
