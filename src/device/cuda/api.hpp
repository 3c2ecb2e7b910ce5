// The CUDA runtime and a pool of its events. The runtime is linked statically and loads the driver
// at its first use, so the same binary also runs on machines without a driver.
#pragma once

#include <cuda_runtime.h>

#include "atoll/cuda.hpp"
#include "atoll/cuda/runtime.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll::cuda {

// A CUDA event from a pool, to which it returns when destroyed. Creating an event costs more than
// recording one.
class PooledEvent {
 public:
  enum class Kind {
    order,  // event without a time stamp, so that waits are cheaper
    time
  };
  PooledEvent(int ordinal, Kind kind);
  ~PooledEvent();
  PooledEvent(PooledEvent&& other) noexcept;
  PooledEvent& operator=(PooledEvent&&) = delete;

  cudaEvent_t get() const noexcept { return event_; }
  int ordinal() const noexcept { return ordinal_; }
  bool happened() const;  // true once the GPU has reached the last cudaEventRecord() of the event

 private:
  int ordinal_;
  Kind kind_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace atoll_v1::atoll::cuda
