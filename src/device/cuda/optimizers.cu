// AdamW and SGD on a shard. The same pass also writes the low-precision weights that compute reads.
#include <algorithm>
#include <cmath>

#include "device/cuda/elements.cuh"
#include "device/cuda/launch.cuh"
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

// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101); the weights shrink first.
template <class Low, class Moment, int n>
__global__ void __launch_bounds__(threads) adamw_packs(AdamWStep s, Low* low, std::uint64_t packs) {
  __shared__ float rate, root, scale;
  __shared__ bool skipped;
  if (threadIdx.x == 0) {
    const double factor = s.scale ? *s.scale : 1.0;
    skipped = !isfinite(factor);  // a step with an infinite or NaN norm changes nothing
    scale = static_cast<float>(factor);
    const auto correction = [&s](float beta) {
      return 1.0 - pow(static_cast<double>(beta), *s.steps);
    };
    rate = static_cast<float>(static_cast<double>(s.learning_rate) / correction(s.beta1));
    root = static_cast<float>(1.0 / sqrt(correction(s.beta2)));
  }
  __syncthreads();
  if (skipped) return;
  const float keep = 1.0f - s.learning_rate * s.weight_decay;
  const std::uint64_t key = mix(s.key + static_cast<std::uint64_t>(*s.steps));
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto g = reinterpret_cast<const Pack<float, n>*>(s.gradient.data)[i];
    auto w = reinterpret_cast<Pack<float, n>*>(s.weights.data)[i];
    auto moments1 = reinterpret_cast<Pack<Moment, n>*>(s.moment1.data)[i];
    auto moments2 = reinterpret_cast<Pack<Moment, n>*>(s.moment2.data)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float gradient = g.values[k] * scale;
      const float m = s.beta1 * convert<float>(moments1.values[k]) + (1.0f - s.beta1) * gradient;
      const float v =
          s.beta2 * convert<float>(moments2.values[k]) + (1.0f - s.beta2) * gradient * gradient;
      w.values[k] = w.values[k] * keep - rate * m / (sqrtf(v) * root + s.epsilon);
      if constexpr (std::is_same_v<Moment, float>) {
        moments1.values[k] = m;
        moments2.values[k] = v;
      } else {
        const std::uint64_t chance =
            s.key == 0 ? 0 : mix(key + (s.first + i * n + k + 1) * 0x9e3779b97f4a7c15u);
        moments1.values[k] = round_by_chance(m, static_cast<std::uint32_t>(chance), s.key == 0);
        moments2.values[k] =
            round_by_chance(v, static_cast<std::uint32_t>(chance >> 16), s.key == 0);
      }
    }
    reinterpret_cast<Pack<float, n>*>(s.weights.data)[i] = w;
    reinterpret_cast<Pack<Moment, n>*>(s.moment1.data)[i] = moments1;
    reinterpret_cast<Pack<Moment, n>*>(s.moment2.data)[i] = moments2;
    store_low<Low, n>(low, i, w);
  }
}

template <class Low, int n>
__global__ void __launch_bounds__(threads) sgd_packs(SgdStep s, Low* low, std::uint64_t packs) {
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

// Calls body with the address of the low-precision copy; it is null if there is no copy.
template <class Body>
void with_low(View low, const Body& body) {
  if (low.count == 0) return body(static_cast<__nv_bfloat16*>(nullptr));
  with_gpu_floating_type(low.dtype,
                         [&]<class Low>(Type<Low>) { body(static_cast<Low*>(low.data)); });
}

// Every block first computes the two bias corrections, which need f64 powers. This limit keeps that
// cost small, and still gives enough blocks that a slow last block does not matter.
constexpr unsigned most_adamw_blocks = 8192;

unsigned limited(unsigned blocks, unsigned most) {
  return most == 0 ? blocks : std::min(blocks, most);
}

template <class Moment>
void launch_adamw(cudaStream_t stream, const AdamWStep& step) {
  with_low(step.weights_low, [&]<class Low>(Low* low) {
    in_packs(step.weights.count,
             {step.weights.data, step.moment1.data, step.moment2.data, step.gradient.data, low},
             [&]<int n>(std::integral_constant<int, n>, std::uint64_t packs) {
               const unsigned useful = std::min(blocks_for(packs), most_adamw_blocks);
               const unsigned blocks = limited(useful, step.most_blocks);
               start("adamw", adamw_packs<Low, Moment, n>, {blocks, stream}, step, low, packs);
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
               const unsigned blocks = limited(blocks_for(packs), step.most_blocks);
               start("sgd", sgd_packs<Low, n>, {blocks, native(stream)}, step, low, packs);
             });
  });
}

}  // namespace atoll_v1::atoll::cuda
