// Determines whether this process has a CUDA context on a GPU. The library and the GPU backends,
// which do not include each other's headers, both use this header. It needs the headers of the CUDA
// toolkit and its runtime library.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace atoll_abi {

// Returns true if this process has a CUDA context on the GPU `ordinal`. Making a GPU current
// creates a context on it, which takes several hundred MB of GPU memory, so code that restores the
// current device calls this function first. The CUDA runtime looks up the driver's function, so
// that programs need not link the driver library.
inline bool has_cuda_context(int ordinal) noexcept {
  using GetState = decltype(cuDevicePrimaryCtxGetState);
  static const auto get_state = []() -> GetState* {
    constexpr unsigned since = 7000;  // cuDevicePrimaryCtxGetState exists since CUDA 7.0
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion(
        "cuDevicePrimaryCtxGetState", &found, since, cudaEnableDefault, &result);
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<GetState*>(found)
               : nullptr;
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state && get_state(ordinal, &flags, &active) == CUDA_SUCCESS && active != 0;
}

}  // namespace atoll_abi
