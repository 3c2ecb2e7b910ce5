// Kernels for reduce, sum_squares and clip_factor.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/cuda/elements.cuh"
#include "device/cuda/ops.hpp"
#include "device/exact_sum.hpp"

namespace atoll_v1::atoll::cuda {
namespace {

template <ReduceOp op, class T>
__device__ __forceinline__ T combine(T a, T b) {
  if constexpr (op == ReduceOp::min) {
    return b < a ? b : a;
  } else if constexpr (op == ReduceOp::max) {
    return a < b ? b : a;
  } else if constexpr (op == ReduceOp::product && std::is_integral_v<T>) {
    // The product of two 16-bit numbers can overflow `int`; unsigned 64-bit numbers wrap around.
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else if constexpr (op == ReduceOp::product) {
    return a * b;
  } else if constexpr (op == ReduceOp::band) {
    return static_cast<T>(a & b);
  } else if constexpr (op == ReduceOp::bor) {
    return static_cast<T>(a | b);
  } else if constexpr (op == ReduceOp::bxor) {
    return static_cast<T>(a ^ b);
  } else {
    return a + b;
  }
}

// Averages of integers truncate. The divisor may exceed the range of T, so a wider type divides.
template <class T>
__device__ __forceinline__ T divide(T sum, int divisor) {
  if constexpr (std::is_integral_v<T>) {
    using Signed = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
    using Number = std::conditional_t<std::is_signed_v<T>, Signed, std::make_unsigned_t<Signed>>;
    return static_cast<T>(static_cast<Number>(sum) / static_cast<Number>(divisor));
  } else {
    return sum / static_cast<T>(divisor);
  }
}

// True for reductions that fallbacks seldom need. They have only the kernel that loads one element
// at a time; the others also have one that loads packs of elements.
template <class T, ReduceOp op>
constexpr bool is_rare = op >= ReduceOp::product || std::is_same_v<T, std::int8_t> ||
                         std::is_same_v<T, std::int16_t> || std::is_same_v<T, std::uint16_t> ||
                         std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t>;

constexpr int tree_levels = 12;  // levels of the reduction tree; enough for 4,095 parts

// Builds an adjacent-pair tree from values that arrive one by one, like the carries of a binary
// counter. Levels are unrolled, so that they stay in registers.
template <ReduceOp op, class T, int n>
class Tree {
 public:
  __device__ void add(const T (&value)[n]) {
    T carried[n];
#pragma unroll
    for (int k = 0; k < n; ++k) carried[k] = value[k];
    bool placed = false;
#pragma unroll
    for (int level = 0; level < tree_levels; ++level) {
      if (placed) continue;
      if ((held_ >> level & 1u) != 0) {
#pragma unroll
        for (int k = 0; k < n; ++k) carried[k] = combine<op>(sums_[level][k], carried[k]);
        held_ &= ~(1u << level);
      } else {
#pragma unroll
        for (int k = 0; k < n; ++k) sums_[level][k] = carried[k];
        held_ |= 1u << level;
        placed = true;
      }
    }
  }
  // Combines the levels that are left; an odd last operand moves up a level.
  __device__ void finish(T (&result)[n]) {
    bool any = false;
#pragma unroll
    for (int level = 0; level < tree_levels; ++level) {
      if ((held_ >> level & 1u) == 0) continue;
#pragma unroll
      for (int k = 0; k < n; ++k) {
        result[k] = any ? combine<op>(sums_[level][k], result[k]) : sums_[level][k];
      }
      any = true;
    }
    held_ = 0;
  }

 private:
  T sums_[tree_levels][n];
  unsigned held_ = 0;
};

template <ReduceOp op, class T, class Sum, int n>
__device__ __forceinline__ void store(T* dst, std::uint64_t pack, Sum (&sum)[n], int divisor) {
  Pack<T, n> to;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if constexpr (op == ReduceOp::avg) sum[k] = divide(sum[k], divisor);
    to.values[k] = convert<T>(sum[k]);
  }
  reinterpret_cast<Pack<T, n>*>(dst)[pack] = to;
}

// Minimum number of resident blocks per SM. The limit of 1 stops the compiler from saving registers
// for more blocks. Without it, the f64 division spills on sm_80, and the rare types on sm_90.
template <class T, ReduceOp op>
constexpr int blocks_at_once = sizeof(T) == 8 || is_rare<T, op> ? 1 : 0;

template <class T, class From, ReduceOp op, int n>
__global__ void __launch_bounds__(threads, blocks_at_once<T, op>)
    reduce_packs(T* dst, const From* parts, std::uint64_t packs, std::uint64_t part_elements,
                 int nparts, int block, int divisor) {
  using Sum = Wide<T>;
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    Tree<op, Sum, n> outer, inner;
    for (int p = 0; p < nparts; ++p) {
      const auto from = *reinterpret_cast<const Pack<From, n>*>(
          parts + static_cast<std::uint64_t>(p) * part_elements + i * n);
      Sum value[n];
#pragma unroll
      for (int k = 0; k < n; ++k) value[k] = convert<Sum>(from.values[k]);
      inner.add(value);
      if (block > 0 && ((p + 1) % block == 0 || p + 1 == nparts)) {
        inner.finish(value);
        outer.add(value);
      }
    }
    Sum sum[n];
    if (block > 0) {
      outer.finish(sum);
    } else {
      inner.finish(sum);
    }
    store<op>(dst, i, sum, divisor);
  }
}

// Reduces exactly 2, 4 or 8 parts in the order of an adjacent-pair tree. All parts are loaded
// before the first addition, because waiting for each load would leave most of the bandwidth
// unused.
template <class T, class From, ReduceOp op, int n, int nparts>
__global__ void __launch_bounds__(threads)
    reduce_few(T* dst, const From* parts, std::uint64_t packs, std::uint64_t part_elements) {
  using Sum = Wide<T>;
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    Pack<From, n> from[nparts];
#pragma unroll
    for (int p = 0; p < nparts; ++p) {
      from[p] = *reinterpret_cast<const Pack<From, n>*>(
          parts + static_cast<std::uint64_t>(p) * part_elements + i * n);
    }
    Sum sums[nparts][n];
#pragma unroll
    for (int p = 0; p < nparts; ++p) {
#pragma unroll
      for (int k = 0; k < n; ++k) sums[p][k] = convert<Sum>(from[p].values[k]);
    }
#pragma unroll
    for (int width = 1; width < nparts; width *= 2) {
#pragma unroll
      for (int p = 0; p < nparts; p += 2 * width) {
#pragma unroll
        for (int k = 0; k < n; ++k) sums[p][k] = combine<op>(sums[p][k], sums[p + width][k]);
      }
    }
    store<op>(dst, i, sums[0], nparts);
  }
}

template <ReduceOp op, class T, class From>
void launch_reduce(cudaStream_t stream, T* dst, const From* parts, std::uint64_t count, int nparts,
                   int block) {
  constexpr int n = sizeof(T) >= 4 ? 16 / static_cast<int>(sizeof(T)) : 4;
  [[maybe_unused]] const bool packs =
      count % n == 0 && is_aligned(dst, sizeof(T) * n) && is_aligned(parts, sizeof(From) * n);
  if constexpr (std::is_same_v<Wide<T>, float> && (op == ReduceOp::sum || op == ReduceOp::avg)) {
    const auto few = [&]<int parts_at_once>() {
      start("reduce", reduce_few<T, From, op, n, parts_at_once>, {blocks_for(count / n), stream},
            dst, parts, count / n, count);
    };
    if (packs && block <= 0 && nparts == 2) return few.template operator()<2>();
    if (packs && block <= 0 && nparts == 4) return few.template operator()<4>();
    if (packs && block <= 0 && nparts == 8) return few.template operator()<8>();
  }
  if constexpr (!is_rare<T, op>) {
    if (packs) {
      return start("reduce", reduce_packs<T, From, op, n>, {blocks_for(count / n), stream}, dst,
                   parts, count / n, count, nparts, block, nparts);
    }
  }
  start("reduce", reduce_packs<T, From, op, 1>, {blocks_for(count), stream}, dst, parts, count,
        count, nparts, block, nparts);
}

// Each norm block has eight partial sums, as in ../cpu/kernels.cpp. One thread computes each
// partial sum, so a thread block handles 32 norm blocks.
constexpr unsigned lanes = 8;

__global__ void __launch_bounds__(threads)
    sum_squares_lanes(double* out, const float* src, std::uint64_t count, std::uint64_t blocks) {
  const unsigned lane = threadIdx.x % lanes;
  const std::uint64_t block = first_item() / lanes;
  double partial = 0;
  if (block < blocks) {
    const float* const from = src + block * norm_block;
    const std::uint64_t rest = count - block * norm_block;
    const auto n = static_cast<unsigned>(rest < norm_block ? rest : norm_block);
#pragma unroll 8
    for (unsigned i = lane; i < n; i += lanes) {
      const double value = static_cast<double>(from[i]);
      partial += value * value;
    }
  }
  // Adds the eight partial sums as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
#pragma unroll
  for (unsigned step = 1; step < lanes; step *= 2) {
    partial += __shfl_down_sync(0xffffffffu, partial, step, lanes);
  }
  if (block < blocks && lane == 0) out[block] = partial;
}

// Three kernels compute the norm: the largest value, partial exact sums, and the result. NormParts
// holds the results of each thread block.
constexpr unsigned norm_parts = 128;
struct NormParts {
  std::uint64_t largest[norm_parts], high[norm_parts], low[norm_parts];
};

__device__ __forceinline__ std::uint64_t larger(std::uint64_t a, std::uint64_t b) {
  return a > b ? a : b;
}

__global__ void __launch_bounds__(threads)
    largest_of_blocks(NormParts* parts, const double* blocks, std::uint64_t count) {
  __shared__ std::uint64_t largest[threads];
  std::uint64_t most = 0;
#pragma unroll 8
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    most = larger(most, ExactSum::bits(blocks[i]));
  }
  largest[threadIdx.x] = most;
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    largest[threadIdx.x] = larger(largest[threadIdx.x], largest[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) parts->largest[blockIdx.x] = largest[0];
}

__device__ __forceinline__ std::uint64_t largest_of(const NormParts& parts, unsigned count) {
  std::uint64_t most = 0;
  for (unsigned k = 0; k < count; ++k) most = larger(most, parts.largest[k]);
  return most;
}

// Adds the values in any order; the exact sum does not depend on it.
__global__ void __launch_bounds__(threads)
    sums_of_blocks(NormParts* parts, const double* blocks, std::uint64_t count) {
  __shared__ std::uint64_t high[threads], low[threads];
  ExactSum sum(largest_of(*parts, gridDim.x));
#pragma unroll 8
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    sum.add(ExactSum::bits(blocks[i]));
  }
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    high[threadIdx.x] = sum.high();
    low[threadIdx.x] = sum.low();
    __syncthreads();
    if (threadIdx.x < half) sum.add(high[threadIdx.x + half], low[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  parts->high[blockIdx.x] = sum.high();
  parts->low[blockIdx.x] = sum.low();
}

__global__ void __launch_bounds__(threads)
    clip_factor_of(double* result, const NormParts* parts, unsigned count, ClipRule rule,
                   volatile int* permit) {
  if (threadIdx.x != 0) return;
  ExactSum sum(largest_of(*parts, count));
  for (unsigned k = 0; k < count; ++k) sum.add(parts->high[k], parts->low[k]);
  const auto scale = static_cast<double>(rule.gradient_scale);
  const double norm = scale * sqrt(sum.value());
  const auto limit = static_cast<double>(rule.max_norm);
  double factor = limit > 0 && norm > limit ? scale * (limit / norm) : scale;
  if (!isfinite(norm)) factor = rule.skip_nonfinite ? nan("") : scale;
  if (*permit == 0) factor = nan("");
  *permit = 0;
  result[0] = norm;
  result[1] = factor;
  if (!isnan(factor)) result[2] += 1.0;
}

}  // namespace

void CudaOps::reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) {
  ATOLL_ASSERT(dst.count == 0 || parts.count % dst.count == 0, "reduce: parts of unequal size");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  const auto nparts = static_cast<int>(parts.count / dst.count);
  ATOLL_ASSERT(nparts < 1 << tree_levels, "reduce: too many parts for a tree of limited depth");
  const auto launch = [&]<class T, class From>(Type<T>, Type<From>) {
    const auto with = [&]<ReduceOp chosen>() {
      launch_reduce<chosen>(native(stream), static_cast<T*>(dst.data),
                            static_cast<const From*>(parts.data), dst.count, nparts, block);
    };
    switch (op) {
      case ReduceOp::sum:
        return with.template operator()<ReduceOp::sum>();
      case ReduceOp::avg:
        return with.template operator()<ReduceOp::avg>();
      case ReduceOp::min:
        return with.template operator()<ReduceOp::min>();
      case ReduceOp::max:
        return with.template operator()<ReduceOp::max>();
      case ReduceOp::product:
        return with.template operator()<ReduceOp::product>();
      case ReduceOp::band:
      case ReduceOp::bor:
      case ReduceOp::bxor:
        break;
    }
    if constexpr (std::is_integral_v<T>) {
      if (op == ReduceOp::band) return with.template operator()<ReduceOp::band>();
      if (op == ReduceOp::bor) return with.template operator()<ReduceOp::bor>();
      return with.template operator()<ReduceOp::bxor>();
    }
  };
  if (dst.dtype == parts.dtype) {
    return with_gpu_type(dst.dtype, [&]<class T>(Type<T> type) { launch(type, type); });
  }
  ATOLL_ASSERT(parts.dtype == DType::f32 && size_of(dst.dtype) == 2,
               "reduce: parts of another type than dst must be f32, and dst bf16 or f16");
  with_gpu_floating_type(dst.dtype, [&]<class T>(Type<T> type) {
    if constexpr (sizeof(T) == 2) launch(type, Type<float>());
  });
}

void CudaOps::sum_squares(Stream& stream, View out, ConstView src) {
  ATOLL_ASSERT(out.dtype == DType::f64 && src.dtype == DType::f32 &&
                   out.count == (src.count + norm_block - 1) / norm_block,
               "sum_squares: src must be f32, and out must have one f64 for each norm block");
  if (out.count == 0) return;
  const Current current(ordinal_);
  const auto grid = static_cast<unsigned>((out.count * lanes + threads - 1) / threads);
  start("sum_squares", sum_squares_lanes, {grid, native(stream)}, out.as<double>(), src.as<float>(),
        src.count, out.count);
}

CudaOps::Clip CudaOps::clip_of(Stream& stream) {
  const std::lock_guard lock(mutex_);
  Clip& known = clips_[stream.backend().native()];
  if (known.permit) return known;
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(int), cudaHostAllocMapped), "cudaHostAlloc");
  Clip made;
  made.permit = std::shared_ptr<int>(static_cast<int*>(memory), [ordinal = ordinal_](int* it) {
    const Current current(ordinal, std::nothrow);
    cudaFreeHost(it);
  });
  *made.permit = 0;
  check(cudaMalloc(&memory, sizeof(NormParts)), "cudaMalloc");
  made.parts = std::shared_ptr<void>(memory, [ordinal = ordinal_](void* it) {
    const Current current(ordinal, std::nothrow);
    cudaFree(it);
  });
  return known = made;
}

void CudaOps::clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) {
  ATOLL_ASSERT(result.count == 3 && result.dtype == DType::f64 && blocks.dtype == DType::f64,
               "clip_factor: blocks must be f64, and result must have three f64");
  const Current current(ordinal_);
  const Clip clip = clip_of(stream);
  stream.enqueue([word = clip.permit] { *word = 1; });
  auto* const parts = static_cast<NormParts*>(clip.parts.get());
  const unsigned grid = std::clamp(blocks_for(blocks.count), 1u, norm_parts);
  start("clip_factor", largest_of_blocks, {grid, native(stream)}, parts, blocks.as<double>(),
        blocks.count);
  start("clip_factor", sums_of_blocks, {grid, native(stream)}, parts, blocks.as<double>(),
        blocks.count);
  start("clip_factor", clip_factor_of, {1, native(stream)}, result.as<double>(),
        static_cast<const NormParts*>(parts), grid, rule,
        static_cast<volatile int*>(clip.permit.get()));
}

}  // namespace atoll_v1::atoll::cuda
