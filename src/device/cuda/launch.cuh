// Launches kernels over elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "device/cuda/api.hpp"

namespace atoll_v1::atoll::cuda {

constexpr int threads = 256;

// Returns the number of thread blocks for `items` threads, up to a limit. If there are more items,
// each thread of the kernel processes several.
inline unsigned blocks_for(std::uint64_t items) {
  constexpr std::uint64_t most = 1u << 20;
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + threads - 1) / threads, 1, most));
}

struct Launch {
  dim3 blocks;  // number of thread blocks
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // bytes of dynamic shared memory in each block
  unsigned block_threads = threads;
};

// Launches a kernel; throws the error of the launch with `name`. It does not use nvcc's <<<>>>
// syntax, so that any C++ compiler can compile it for the emulated GPU (tests/gpu/emulated).
template <class... Parameters, class... Arguments>
void start(std::string_view name, void (*kernel)(Parameters...), const Launch& launch,
           Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = launch.blocks;
  config.blockDim = dim3(launch.block_threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
}

__device__ __forceinline__ std::uint64_t first_item() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint64_t items_stride() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

}  // namespace atoll_v1::atoll::cuda
