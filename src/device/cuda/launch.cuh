// How kernels over elements are launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "device/backend.hpp"
#include "device/cuda/api.hpp"

namespace atoll_v1::atoll::cuda {

constexpr int threads = 256;

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.backend().native());
}

// Blocks for `items` of one thread each; kernels stride over what is beyond.
inline unsigned blocks_for(std::uint64_t items) {
  constexpr std::uint64_t most = 1u << 20;
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + threads - 1) / threads, 1, most));
}

inline void launched(std::string_view kernel) { check(cudaGetLastError(), kernel); }

__device__ __forceinline__ std::uint64_t first_item() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint64_t items_stride() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

}  // namespace atoll_v1::atoll::cuda
