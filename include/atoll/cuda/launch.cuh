// For CUDA sources: launches of kernels over elements, and packs of elements that are loaded and
// stored as a unit (usually 16 bytes). It needs the headers of the CUDA toolkit and its runtime
// library.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "atoll/cuda/runtime.hpp"

namespace atoll_v1::atoll::cuda {

constexpr int threads = 256;

// Returns the number of thread blocks for `items` threads, up to a limit. If there are more items,
// each thread of the kernel processes several.
inline unsigned blocks_for(std::uint64_t items, std::uint64_t most = 1u << 20) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + threads - 1) / threads, 1, most));
}

struct Launch {
  dim3 blocks;  // number of thread blocks
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // bytes of dynamic shared memory in each block
  unsigned block_threads = threads;
};

// Launches a kernel; throws the error of the launch with `name`. It does not use nvcc's <<<>>>
// syntax, so that any C++ compiler can compile it for the emulated GPU (tests/gpu/emulated). It is
// static, so that each program and library calls its own copy of the CUDA runtime.
template <class... Parameters, class... Arguments>
static void start(std::string_view name, void (*kernel)(Parameters...), const Launch& launch,
                  Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = launch.blocks;
  config.blockDim = dim3(launch.block_threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
}

// The first element of a thread, and the distance to its next one.
__device__ __forceinline__ std::uint64_t first_item() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint64_t items_stride() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

// Converts between element types; rounds to nearest even.
template <class To, class From>
__device__ __forceinline__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return convert<To>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<From, __half>) {
    return convert<To>(__half2float(value));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T values[n];
};

template <class T>
using Type = std::type_identity<T>;

inline bool is_aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

}  // namespace atoll_v1::atoll::cuda
