// Launches of kernels, and rows of a matrix in a block's registers, in packs of 16 bytes.
#pragma once

#include "atoll/cuda/launch.cuh"
#include "model/cuda/kernels.hpp"

// Dynamic shared memory of the block; Launch::shared_bytes is its size. The emulated GPU
// (tests/gpu/emulated) defines it under this name.
extern __shared__ float4 dynamic_shared[];

namespace train::cuda {

using atoll::cuda::blocks_for;
using atoll::cuda::check;
using atoll::cuda::convert;
using atoll::cuda::first_item;
using atoll::cuda::is_aligned;
using atoll::cuda::items_stride;
using atoll::cuda::Launch;
using atoll::cuda::Pack;
using atoll::cuda::start;
using atoll::cuda::threads;
using atoll::cuda::Type;

constexpr int warps = threads / 32;
// Elements of T in a pack of 16 bytes.
template <class T>
constexpr int pack_of = 16 / static_cast<int>(sizeof(T));
static_assert(most_norm_width == 32 * threads);

// Calls body with the Type of the compute dtype, f32 or bf16.
template <class Body>
void with_compute_type(atoll::DType dtype, const Body& body) {
  if (dtype == atoll::DType::bf16) {
    body(Type<__nv_bfloat16>{});
  } else {
    body(Type<float>{});
  }
}

template <class T>
const T* pointer(atoll::ConstView view) {
  return static_cast<const T*>(view.data);
}
template <class T>
T* pointer(atoll::View view) {
  return static_cast<T*>(view.data);
}

template <class... Views>
bool all_aligned(const Views&... views) {
  return (is_aligned(views.data, 16) && ...);
}

// Reports an invalid id. Uses a single store, because several threads may report.
__device__ __forceinline__ void report(BadId* bad, std::int32_t id, std::uint64_t position) {
  const BadId told{id, static_cast<std::int32_t>(position) + 1};
  long long word = 0;
  memcpy(&word, &told, sizeof told);
  *reinterpret_cast<volatile long long*>(bad) = word;
}

struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
  static __device__ float none() { return 0.0f; }
};
struct Maximum {
  // NaN counts as the largest value, so that it propagates.
  static __device__ float of(float a, float b) { return a >= b || a != a ? a : b; }
  static __device__ float none() { return -3.4028234664e38f; }
};

// Reduces over all threads of the block; all of them receive the result. Pairs combine at distances
// 16, 8, ... within a warp, then across warps.
template <class Op>
__device__ __forceinline__ float over_block(float value, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : Op::none();
#pragma unroll
  for (int step = warps / 2; step > 0; step /= 2) {
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  __syncthreads();  // all threads must read `shared` before it is overwritten
  return __shfl_sync(0xffffffffu, value, 0);
}

// The part of a row that one thread keeps in registers: up to `held` packs of n elements.
template <class T, int n, int held>
struct Row {
  Pack<T, n> packs[held];

  static __device__ int index(int k) { return k * threads + static_cast<int>(threadIdx.x); }
  __device__ void load(const T* from, int count) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (index(k) < count) packs[k] = reinterpret_cast<const Pack<T, n>*>(from)[index(k)];
    }
  }
  // Calls body(k, i, index) for each element of the row: element i of pack k has this index in the
  // row.
  template <class Body>
  static __device__ __forceinline__ void each(int count, const Body& body) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (index(k) >= count) continue;
#pragma unroll
      for (int e = 0; e < n; ++e) body(k, e, index(k) * n + e);
    }
  }
  __device__ float at(int k, int e) const { return convert<float>(packs[k].values[e]); }
  __device__ void set(int k, int e, float value) { packs[k].values[e] = convert<T>(value); }
  __device__ void store(T* to, int count) const {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (index(k) < count) reinterpret_cast<Pack<T, n>*>(to)[index(k)] = packs[k];
    }
  }
};

// Calls body.operator()<n, held>() for rows of `width` elements, with packs of 16 bytes if they
// fit.
template <class T, class Body>
void with_row_shape(std::int64_t width, bool aligned, const Body& body) {
  constexpr int n = pack_of<T>;
  if (width > (aligned && width % n == 0 ? most_norm_width : most_norm_width / 2)) {
    throw atoll::Error(atoll::ErrorCode::internal, "norms: the rows are too wide");
  }
  if (!aligned || width % n != 0) {
    if (width <= 4 * threads) return body.template operator()<1, 4>();
    return body.template operator()<1, 16>();
  }
  const std::int64_t packs = (width / n + threads - 1) / threads;
  if (packs <= 1) return body.template operator()<n, 1>();
  if (packs <= 2) return body.template operator()<n, 2>();
  constexpr int most = static_cast<int>(most_norm_width) / (n * static_cast<int>(threads));
  if constexpr (most > 4) {
    if (packs > 4) return body.template operator()<n, most>();
  }
  body.template operator()<n, 4>();
}

}  // namespace train::cuda
