// For code that calls the CUDA runtime itself: errors as exceptions, and the current device of a
// scope. It needs the headers of the CUDA toolkit and its runtime library.
#pragma once

#include <cuda_runtime_api.h>

#include <new>
#include <string>
#include <string_view>

#include "atoll/cuda/context.hpp"
#include "atoll/error.hpp"

// If a program and a library both link the CUDA runtime statically, each has a copy of it. These
// functions are hidden, so that each program and library calls its own copy of the runtime.
#define ATOLL_OF_THIS_LIBRARY __attribute__((visibility("hidden")))

namespace atoll_v1::atoll::cuda {

// Returns if `status` is success. Otherwise throws Error(out_of_memory) or Error(backend) with
// `what` and the message of the runtime.
ATOLL_OF_THIS_LIBRARY inline void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears CUDA's error, which later calls would report again
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::backend;
  throw Error(code, "cuda: " + std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                        cudaGetErrorName(status) + ")");
}

// Sets the current device of the calling thread for a scope. The destructor restores the previous
// device only if this process already has a context on it. A new thread starts with device 0, and
// restoring that would create a context of several hundred MB on a GPU that another rank may use.
class ATOLL_OF_THIS_LIBRARY Current {
 public:
  // Throws the errors of check(), for example for a GPU that does not exist.
  explicit Current(int ordinal) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ == ordinal) return;
    check(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = true;
  }
  // For destructors; ignores errors, because the following CUDA call reports them as well.
  Current(int ordinal, std::nothrow_t) noexcept
      : changed_(cudaGetDevice(&before_) == cudaSuccess && before_ != ordinal &&
                 cudaSetDevice(ordinal) == cudaSuccess) {}
  ~Current() {
    if (changed_ && atoll_abi::has_cuda_context(before_)) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace atoll_v1::atoll::cuda

#undef ATOLL_OF_THIS_LIBRARY
