// AdamW and SGD on a shard. The same pass also writes the low-precision weights that compute reads.
#include <algorithm>
#include <cmath>

#include "device/cuda/elements.cuh"
#include "device/cuda/ops.hpp"

namespace atoll_v1::atoll::cuda {
namespace {

// Writes one pack of the low-precision copy of the weights; does nothing if `low` is null.
template <class Low, int n>
__device__ __forceinline__ void store_low(Low* low, std::uint64_t i,
                                          const Pack<float, n>& weights) {
  if (!low) return;
  Pack<Low, n> rounded;
#pragma unroll
  for (int k = 0; k < n; ++k) rounded.values[k] = convert<Low>(weights.values[k]);
  reinterpret_cast<Pack<Low, n>*>(low)[i] = rounded;
}

// Stochastic rounding with 16 random bits. Rounds to nearest if `nearest` is set or the value is
// not finite.
__device__ __forceinline__ __nv_bfloat16 round_by_chance(float value, std::uint32_t chance,
                                                         bool nearest) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  if (nearest || (bits & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(value);
  return __nv_bfloat16_raw{static_cast<unsigned short>((bits + (chance & 0xffffu)) >> 16)};
}

// A kernel runs with as many blocks as are useful, or with few blocks beside other work. Few blocks
// must still reach a high bandwidth, so each has 1,024 threads, and each thread of AdamW loads two
// packs before it uses them.
struct Alone {
  static constexpr int block_threads = threads, packs_at_once = 1;
};
struct Beside {
  static constexpr int block_threads = 1024, packs_at_once = 2;
};

// Factors that are equal for all elements. The first thread of a block computes them, because the
// bias corrections need f64 powers.
struct AdamWFactors {
  float rate, root, scale;
  bool skipped;  // a step with an infinite or NaN norm changes nothing
};

__device__ __forceinline__ AdamWFactors adamw_factors(const AdamWStep& s) {
  const double factor = s.scale ? *s.scale : 1.0;
  const auto correction = [&s](float beta) {
    return 1.0 - pow(static_cast<double>(beta), *s.steps);
  };
  return {.rate = static_cast<float>(static_cast<double>(s.learning_rate) / correction(s.beta1)),
          .root = static_cast<float>(1.0 / sqrt(correction(s.beta2))),
          .scale = static_cast<float>(factor),
          .skipped = !isfinite(factor)};
}

template <class Moment, int n>
struct AdamWPack {
  Pack<float, n> gradient, weights;
  Pack<Moment, n> moment1, moment2;
};

template <class Moment, int n>
__device__ __forceinline__ AdamWPack<Moment, n> load_pack(const AdamWStep& s, std::uint64_t i) {
  return {load_once(reinterpret_cast<const Pack<float, n>*>(s.gradient.data) + i),
          load_once(reinterpret_cast<const Pack<float, n>*>(s.weights.data) + i),
          load_once(reinterpret_cast<const Pack<Moment, n>*>(s.moment1.data) + i),
          load_once(reinterpret_cast<const Pack<Moment, n>*>(s.moment2.data) + i)};
}

// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101); the weights shrink first.
template <class Moment, int n>
__device__ __forceinline__ void update_pack(const AdamWStep& s, const AdamWFactors& factors,
                                            std::uint64_t key, std::uint64_t i,
                                            AdamWPack<Moment, n>& pack) {
  const float keep = 1.0f - s.learning_rate * s.weight_decay;
  [[maybe_unused]] std::uint64_t random = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const float gradient = pack.gradient.values[k] * factors.scale;
    const float m = s.beta1 * convert<float>(pack.moment1.values[k]) + (1.0f - s.beta1) * gradient;
    const float v =
        s.beta2 * convert<float>(pack.moment2.values[k]) + (1.0f - s.beta2) * gradient * gradient;
    pack.weights.values[k] =
        pack.weights.values[k] * keep - factors.rate * m / (sqrtf(v) * factors.root + s.epsilon);
    if constexpr (std::is_same_v<Moment, float>) {
      pack.moment1.values[k] = m;
      pack.moment2.values[k] = v;
    } else {
      // Two elements share 64 random bits.
      const std::uint64_t element = s.first + i * n + k;
      if (s.key != 0 && (k == 0 || element % 2 == 0)) {
        random = mix(key + (element / 2 + 1) * 0x9e3779b97f4a7c15u);
      }
      const auto chance = static_cast<std::uint32_t>(random >> (element % 2 * 32));
      pack.moment1.values[k] = round_by_chance(m, chance, s.key == 0);
      pack.moment2.values[k] = round_by_chance(v, chance >> 16, s.key == 0);
    }
  }
}

template <class Low, class Moment, int n, class How>
__global__ void __launch_bounds__(How::block_threads)
    adamw_packs(AdamWStep s, Low* low, std::uint64_t packs) {
  __shared__ AdamWFactors factors;
  if (threadIdx.x == 0) factors = adamw_factors(s);
  __syncthreads();
  if (factors.skipped) return;
  const std::uint64_t key = mix(s.key + static_cast<std::uint64_t>(*s.steps));
  constexpr int at_once = How::packs_at_once;
  const std::uint64_t stride = items_stride();
  for (std::uint64_t first = first_item(); first < packs; first += at_once * stride) {
    AdamWPack<Moment, n> pack[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      if (first + j * stride < packs) pack[j] = load_pack<Moment, n>(s, first + j * stride);
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const std::uint64_t i = first + j * stride;
      if (i >= packs) continue;
      update_pack(s, factors, key, i, pack[j]);
      store_once(reinterpret_cast<Pack<float, n>*>(s.weights.data) + i, pack[j].weights);
      store_once(reinterpret_cast<Pack<Moment, n>*>(s.moment1.data) + i, pack[j].moment1);
      store_once(reinterpret_cast<Pack<Moment, n>*>(s.moment2.data) + i, pack[j].moment2);
      store_low<Low, n>(low, i, pack[j].weights);
    }
  }
}

template <class Low, int n, class How>
__global__ void __launch_bounds__(How::block_threads)
    sgd_packs(SgdStep s, Low* low, std::uint64_t packs) {
  const double factor = s.scale ? *s.scale : 1.0;
  if (!isfinite(factor)) return;
  const auto scale = static_cast<float>(factor);
  const float keep = 1.0f - s.learning_rate * s.weight_decay;
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto g = reinterpret_cast<const Pack<float, n>*>(s.gradient.data)[i];
    auto w = reinterpret_cast<Pack<float, n>*>(s.weights.data)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      w.values[k] = w.values[k] * keep - s.learning_rate * (g.values[k] * scale);
    }
    reinterpret_cast<Pack<float, n>*>(s.weights.data)[i] = w;
    store_low<Low, n>(low, i, w);
  }
}

// Calls `launch` for packs of 4 elements if the count is a multiple of 4 and all arrays are
// aligned, as for shards of whole 4,096-element blocks. Otherwise calls `launch` for single
// elements.
template <class Launch>
void in_packs(std::uint64_t count, std::initializer_list<const void*> arrays,
              const Launch& launch) {
  bool whole = count % 4 == 0;
  for (const void* array : arrays) whole = whole && is_aligned(array, 16);
  if (whole) {
    launch(std::integral_constant<int, 4>{}, count / 4);
  } else {
    launch(std::integral_constant<int, 1>{}, count);
  }
}

// Returns the launch of a kernel with at most `most` blocks.
Launch few_blocks(std::uint64_t packs, unsigned most, cudaStream_t stream) {
  constexpr unsigned block_threads = Beside::block_threads;
  const std::uint64_t useful = (packs + block_threads - 1) / block_threads;
  return {.blocks = static_cast<unsigned>(std::min<std::uint64_t>(useful, most)),
          .stream = stream,
          .block_threads = block_threads};
}

// Calls body with the address of the low-precision copy; it is null if there is no copy.
template <class Body>
void with_low(View low, const Body& body) {
  if (low.count == 0) return body(static_cast<__nv_bfloat16*>(nullptr));
  with_gpu_floating_type(low.dtype,
                         [&]<class Low>(Type<Low>) { body(static_cast<Low*>(low.data)); });
}

// Every block first computes the bias corrections. This limit keeps that cost small, and still
// gives enough blocks that a slow last block does not matter.
constexpr unsigned most_adamw_blocks = 8192;

template <class Moment>
void launch_adamw(cudaStream_t stream, const AdamWStep& step) {
  with_low(step.weights_low, [&]<class Low>(Low* low) {
    in_packs(step.weights.count,
             {step.weights.data, step.moment1.data, step.moment2.data, step.gradient.data, low},
             [&]<int n>(std::integral_constant<int, n>, std::uint64_t packs) {
               if (step.most_blocks == 0) {
                 start("adamw", adamw_packs<Low, Moment, n, Alone>,
                       {std::min(blocks_for(packs), most_adamw_blocks), stream}, step, low, packs);
               } else {
                 start("adamw", adamw_packs<Low, Moment, n, Beside>,
                       few_blocks(packs, step.most_blocks, stream), step, low, packs);
               }
             });
  });
}

}  // namespace

void CudaOps::adamw(Stream& stream, const AdamWStep& step) {
  if (step.weights.count == 0) return;
  const Current current(ordinal_);
  if (step.moment1.dtype == DType::bf16) {
    launch_adamw<__nv_bfloat16>(native(stream), step);
  } else {
    launch_adamw<float>(native(stream), step);
  }
}

void CudaOps::sgd(Stream& stream, const SgdStep& step) {
  if (step.weights.count == 0) return;
  const Current current(ordinal_);
  with_low(step.weights_low, [&]<class Low>(Low* low) {
    in_packs(step.weights.count, {step.weights.data, step.gradient.data, low},
             [&]<int n>(std::integral_constant<int, n>, std::uint64_t packs) {
               if (step.most_blocks == 0) {
                 start("sgd", sgd_packs<Low, n, Alone>, {blocks_for(packs), native(stream)}, step,
                       low, packs);
               } else {
                 start("sgd", sgd_packs<Low, n, Beside>,
                       few_blocks(packs, step.most_blocks, native(stream)), step, low, packs);
               }
             });
  });
}

}  // namespace atoll_v1::atoll::cuda
