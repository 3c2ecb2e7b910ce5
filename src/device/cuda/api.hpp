// Wraps the CUDA runtime and reports its errors as exceptions. The runtime is linked statically and
// loads the driver at its first use, so the same binary also runs on machines without a driver.
#pragma once

#include <cuda_runtime.h>

#include <new>
#include <string_view>

#include "device/backend.hpp"

namespace atoll_v1::atoll::cuda {

// Returns if `status` is success. Otherwise throws Error(out_of_memory) or Error(backend) with
// `what` and the message of the runtime.
void check(cudaError_t status, std::string_view what);

// Returns the cudaStream_t of a stream on a cuda device.
inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.backend().native());
}

// Sets the current device of the calling thread for a scope. The destructor restores the previous
// device only if this process already has a context on it. A new thread starts with device 0, and
// restoring that would create a context of several hundred MB on a GPU that another rank may use.
class Current {
 public:
  explicit Current(int ordinal);
  // Used in destructors; ignores errors, because the following CUDA call reports them as well.
  Current(int ordinal, std::nothrow_t) noexcept;
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

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
