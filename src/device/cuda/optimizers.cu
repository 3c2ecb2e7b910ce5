// AdamW and SGD on a shard, with the weights that compute reads written in the same pass.
#include <cmath>

#include "device/cuda/elements.cuh"
#include "device/cuda/launch.cuh"
#include "device/cuda/ops.hpp"

namespace atoll_v1::atoll::cuda {
namespace {

// What an update writes beside the master weights: NULL or as many elements.
template <class Low, int n>
__device__ __forceinline__ void store_low(Low* low, std::uint64_t i,
                                          const Pack<float, n>& weights) {
  if (!low) return;
  Pack<Low, n> rounded;
#pragma unroll
  for (int k = 0; k < n; ++k) rounded.values[k] = convert<Low>(weights.values[k]);
  reinterpret_cast<Pack<Low, n>*>(low)[i] = rounded;
}

struct AdamW {
  float *weights, *moment1, *moment2;
  const float* gradient;
  const double *steps, *scale;
  float learning_rate, beta1, beta2, epsilon, weight_decay;
};

// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101); the weights shrink first.
template <class Low, int n>
__global__ void __launch_bounds__(threads) adamw_packs(AdamW s, Low* low, std::uint64_t packs) {
  __shared__ float rate, root, scale;
  __shared__ bool skipped;
  if (threadIdx.x == 0) {
    const double factor = s.scale ? *s.scale : 1.0;
    skipped = !isfinite(factor);  // a step without a norm changes nothing
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
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto g = reinterpret_cast<const Pack<float, n>*>(s.gradient)[i];
    auto w = reinterpret_cast<Pack<float, n>*>(s.weights)[i];
    auto m = reinterpret_cast<Pack<float, n>*>(s.moment1)[i];
    auto v = reinterpret_cast<Pack<float, n>*>(s.moment2)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float gradient = g.values[k] * scale;
      m.values[k] = s.beta1 * m.values[k] + (1.0f - s.beta1) * gradient;
      v.values[k] = s.beta2 * v.values[k] + (1.0f - s.beta2) * gradient * gradient;
      w.values[k] =
          w.values[k] * keep - rate * m.values[k] / (sqrtf(v.values[k]) * root + s.epsilon);
    }
    reinterpret_cast<Pack<float, n>*>(s.weights)[i] = w;
    reinterpret_cast<Pack<float, n>*>(s.moment1)[i] = m;
    reinterpret_cast<Pack<float, n>*>(s.moment2)[i] = v;
    store_low<Low, n>(low, i, w);
  }
}

struct Sgd {
  float* weights;
  const float* gradient;
  const double* scale;
  float learning_rate, weight_decay;
};

template <class Low, int n>
__global__ void __launch_bounds__(threads) sgd_packs(Sgd s, Low* low, std::uint64_t packs) {
  const double factor = s.scale ? *s.scale : 1.0;
  if (!isfinite(factor)) return;
  const auto scale = static_cast<float>(factor);
  const float keep = 1.0f - s.learning_rate * s.weight_decay;
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto g = reinterpret_cast<const Pack<float, n>*>(s.gradient)[i];
    auto w = reinterpret_cast<Pack<float, n>*>(s.weights)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      w.values[k] = w.values[k] * keep - s.learning_rate * (g.values[k] * scale);
    }
    reinterpret_cast<Pack<float, n>*>(s.weights)[i] = w;
    store_low<Low, n>(low, i, w);
  }
}

// Shards are whole blocks of 4,096 elements, so packs leave nothing over there.
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

template <class Body>
void with_low_type(View low, const Body& body) {
  if (low.count == 0) return body(Type<__nv_bfloat16>{});
  with_floating_type(low.dtype, body);
}

}  // namespace

void CudaOps::adamw(Stream& stream, const AdamWStep& step) {
  const std::uint64_t count = step.weights.count;
  if (count == 0) return;
  const Current current(ordinal_);
  const AdamW s{step.weights.as<float>(),
                step.moment1.as<float>(),
                step.moment2.as<float>(),
                step.gradient.as<float>(),
                step.steps,
                step.scale,
                step.learning_rate,
                step.beta1,
                step.beta2,
                step.epsilon,
                step.weight_decay};
  with_low_type(step.weights_low, [&]<class Low>(Type<Low>) {
    auto* const low =
        step.weights_low.count > 0 ? static_cast<Low*>(step.weights_low.data) : nullptr;
    in_packs(
        count, {s.weights, s.moment1, s.moment2, s.gradient, low},
        [&]<int n>(std::integral_constant<int, n>, std::uint64_t packs) {
          start("adamw", adamw_packs<Low, n>, {blocks_for(packs), native(stream)}, s, low, packs);
        });
  });
}

void CudaOps::sgd(Stream& stream, const SgdStep& step) {
  const std::uint64_t count = step.weights.count;
  if (count == 0) return;
  const Current current(ordinal_);
  const Sgd s{step.weights.as<float>(), step.gradient.as<float>(), step.scale, step.learning_rate,
              step.weight_decay};
  with_low_type(step.weights_low, [&]<class Low>(Type<Low>) {
    auto* const low =
        step.weights_low.count > 0 ? static_cast<Low*>(step.weights_low.data) : nullptr;
    in_packs(count, {s.weights, s.gradient, low},
             [&]<int n>(std::integral_constant<int, n>, std::uint64_t packs) {
               start("sgd", sgd_packs<Low, n>, {blocks_for(packs), native(stream)}, s, low, packs);
             });
  });
}

}  // namespace atoll_v1::atoll::cuda
