// Element types of kernels, and loads and stores of packs.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "atoll/cuda.hpp"
#include "atoll/cuda/launch.cuh"
#include "device/backend.hpp"
#include "device/element_type.hpp"

namespace atoll_v1::atoll::cuda {

// The type in which elements of T are summed: f32 for 16-bit types, else T.
template <class T>
using Wide =
    std::conditional_t<std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>, float, T>;

// An integer type of `bytes` bytes, for one load or store.
template <std::size_t bytes>
using Word = std::conditional_t<
    bytes == 16, uint4,
    std::conditional_t<bytes == 8, uint2,
                       std::conditional_t<bytes == 4, unsigned, unsigned short>>>;
// Load and store data that nothing uses again soon, so that it does not displace other data from
// the L2 cache.
template <class P>
__device__ __forceinline__ P load_once(const P* from) {
  static_assert(sizeof(P) == sizeof(Word<sizeof(P)>));
  const auto word = __ldcs(reinterpret_cast<const Word<sizeof(P)>*>(from));
  P pack;
  memcpy(&pack, &word, sizeof pack);
  return pack;
}
template <class P>
__device__ __forceinline__ void store_once(P* to, const P& pack) {
  Word<sizeof(P)> word;
  memcpy(&word, &pack, sizeof word);
  __stcs(reinterpret_cast<Word<sizeof(P)>*>(to), word);
}

// The CUDA type that corresponds to an element type of the library.
template <class T>
using Native = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat16,
                                  std::conditional_t<std::is_same_v<T, float16>, __half, T>>;

// Calls `body` with the CUDA element type that kernels use for a dtype, wrapped in Type<>.
template <class Body>
void with_gpu_type(DType dtype, const Body& body) {
  with_type(dtype, [&]<class T>(Type<T>) { body(Type<Native<T>>{}); });
}

template <class Body>
void with_gpu_floating_type(DType dtype, const Body& body) {
  with_floating_type(dtype, [&]<class T>(Type<T>) { body(Type<Native<T>>{}); });
}

}  // namespace atoll_v1::atoll::cuda
