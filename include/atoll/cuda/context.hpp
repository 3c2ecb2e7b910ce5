// Whether a process has a CUDA context on a GPU. Shared by the library and by backends of GPUs, which
// do not include each other. Needs the headers of the CUDA toolkit and its runtime library.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace atoll_abi {

// Making a GPU current creates a context there, which costs several hundred MB of its memory, so code
// that restores the current device asks first. The runtime looks up the driver's function, so that
// no build has to link the driver.
inline bool has_cuda_context(int ordinal) noexcept {
  using GetState = decltype(cuDevicePrimaryCtxGetState);
  static const auto get_state = []() -> GetState* {
    constexpr unsigned since = 7000;  // the CUDA version of this function, 7.0
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
