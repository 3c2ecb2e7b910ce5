// The CUDA runtime, with errors as exceptions. The runtime is linked statically and finds the
// driver when it is first used, so that one binary runs with and without.
#pragma once

#include <cuda_runtime.h>

#include <new>
#include <string_view>

#include "device/backend.hpp"

namespace atoll_v1::atoll::cuda {

// Throws Error(out_of_memory, backend) with `what` and the runtime's words; success passes.
void check(cudaError_t status, std::string_view what);

// Of a cuda device's stream.
inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.backend().native());
}

// Makes a device the calling thread's for a scope. What the thread had before comes back only where
// this process uses it: a thread begins with device 0, and to make that current would bring up a
// context there, some hundred MB of a GPU that is another rank's.
class Current {
 public:
  explicit Current(int ordinal);
  // Where nothing may be thrown: what fails here, the call behind it fails, too.
  Current(int ordinal, std::nothrow_t) noexcept;
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
  int ordinal() const noexcept { return ordinal_; }
  bool happened() const;  // of the last record; an event is recorded as soon as it is taken

 private:
  int ordinal_;
  Kind kind_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace atoll_v1::atoll::cuda
