// Highway compiles this file once per instruction set (foreach_target.h includes it repeatedly) and
// chooses the best version for the processor at the first call.
#include "device/cpu/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "device/element_type.hpp"
#include "device/int8_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atoll_v1::atoll::cpu {
namespace HWY_NAMESPACE {

template <class To, class From>
void cast_loop(To* HWY_RESTRICT dst, const From* HWY_RESTRICT src, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) dst[i] = narrow<To>(widen(src[i]));
}

void cast_views(View dst, ConstView src) {
  with_floating_type(src.dtype, [&]<class From>(std::type_identity<From>) {
    with_floating_type(dst.dtype, [&]<class To>(std::type_identity<To>) {
      cast_loop(static_cast<To*>(dst.data), static_cast<const From*>(src.data), dst.count);
    });
  });
}

template <class To>
void dequantize_loop(To* HWY_RESTRICT dst, const Int8Block* HWY_RESTRICT blocks,
                     std::uint64_t count) {
  for (; count > 0; ++blocks) {
    const std::uint64_t n = std::min(count, int8_block);
    const float scale = blocks->scale;
    for (std::uint64_t i = 0; i < n; ++i) {
      dst[i] = narrow<To>(static_cast<float>(blocks->codes[i]) * scale);
    }
    dst += n;
    count -= n;
  }
}

void dequantize_views(View values, const void* blocks) {
  with_floating_type(values.dtype, [&]<class To>(std::type_identity<To>) {
    dequantize_loop(static_cast<To*>(values.data), static_cast<const Int8Block*>(blocks),
                    values.count);
  });
}

// Eight partial sums, combined in a fixed order, give the same bits on every instruction set.
double block_sum_squares(const float* src, std::uint64_t n) {
  constexpr std::uint64_t lanes = 8;
  double partial[lanes] = {};
  std::uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::uint64_t k = 0; k < lanes; ++k) {
      const double value = static_cast<double>(src[i + k]);
      partial[k] += value * value;
    }
  }
  for (std::uint64_t k = 0; i + k < n; ++k) {
    const double value = static_cast<double>(src[i + k]);
    partial[k] += value * value;
  }
  return ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
         ((partial[4] + partial[5]) + (partial[6] + partial[7]));
}

void sum_squares_blocks(double* out, const float* src, std::uint64_t count) {
  for (std::uint64_t first = 0; first < count; first += norm_block) {
    *out++ = block_sum_squares(src + first, std::min(norm_block, count - first));
  }
}

// Stochastic rounding with 16 random bits. Rounds to nearest if `nearest` is set or the value is
// not finite.
inline bfloat16 round_by_chance(float value, std::uint64_t chance, bool nearest) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (nearest || (bits & 0x7f800000u) == 0x7f800000u) return to_bfloat16(value);
  return std::bit_cast<bfloat16>(
      static_cast<std::uint16_t>((bits + static_cast<std::uint32_t>(chance & 0xffffu)) >> 16));
}

// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101); the weights shrink first.
template <class Moment>
void adamw_loop(const AdamWStep& s, const AdamWFactors& factors) {
  float* HWY_RESTRICT w = s.weights.as<float>();
  const float* HWY_RESTRICT g = s.gradient.as<float>();
  Moment* HWY_RESTRICT m = s.moment1.as<Moment>();
  Moment* HWY_RESTRICT v = s.moment2.as<Moment>();
  const auto [scale, keep, rate, root] = factors;
  const std::uint64_t key = mix(s.key + static_cast<std::uint64_t>(*s.steps));
  [[maybe_unused]] std::uint64_t random = 0;  // two elements share 64 random bits
  for (std::uint64_t i = 0; i < s.weights.count; ++i) {
    const float gradient = g[i] * scale;
    const float first = s.beta1 * widen(m[i]) + (1.0f - s.beta1) * gradient;
    const float second = s.beta2 * widen(v[i]) + (1.0f - s.beta2) * gradient * gradient;
    w[i] = w[i] * keep - rate * first / (std::sqrt(second) * root + s.epsilon);
    if constexpr (std::is_same_v<Moment, float>) {
      m[i] = first;
      v[i] = second;
    } else {
      const std::uint64_t element = s.first + i;
      if (s.key != 0 && (i == 0 || element % 2 == 0)) {
        random = mix(key + (element / 2 + 1) * 0x9e3779b97f4a7c15u);
      }
      const std::uint64_t chance = random >> (element % 2 * 32);
      m[i] = round_by_chance(first, chance, s.key == 0);
      v[i] = round_by_chance(second, chance >> 16, s.key == 0);
    }
  }
}

void adamw_step(const AdamWStep& s, const AdamWFactors& factors) {
  s.moment1.dtype == DType::bf16 ? adamw_loop<bfloat16>(s, factors) : adamw_loop<float>(s, factors);
}

void sgd_loop(const SgdStep& s) {
  float* HWY_RESTRICT w = s.weights.as<float>();
  const float* HWY_RESTRICT g = s.gradient.as<float>();
  const float scale = s.scale ? static_cast<float>(*s.scale) : 1.0f;
  const float keep = 1.0f - s.learning_rate * s.weight_decay;
  for (std::uint64_t i = 0; i < s.weights.count; ++i) {
    w[i] = w[i] * keep - s.learning_rate * (g[i] * scale);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atoll_v1::atoll::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atoll_v1::atoll::cpu {

HWY_EXPORT(cast_views);
HWY_EXPORT(dequantize_views);
HWY_EXPORT(sum_squares_blocks);
HWY_EXPORT(adamw_step);
HWY_EXPORT(sgd_loop);

void cast(View dst, ConstView src) {
  if (dst.dtype == src.dtype) {
    if (dst.data != src.data && dst.count) std::memcpy(dst.data, src.data, dst.bytes());
    return;
  }
  HWY_DYNAMIC_DISPATCH(cast_views)(dst, src);
}

void quantize(void* blocks, std::span<const float> values) {
  auto* block = static_cast<Int8Block*>(blocks);
  for (; !values.empty(); ++block) {
    const auto part = values.first(std::min<std::size_t>(values.size(), int8_block));
    float most = 0;
    bool finite = true;
    for (const float value : part) {
      finite = finite && std::isfinite(value);
      most = std::max(most, std::abs(value));
    }
    *block = {};
    block->scale = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
    // A scale of 0 means that all values are 0, or too small for its type.
    for (std::size_t i = 0; finite && block->scale > 0 && i < part.size(); ++i) {
      const float code = std::nearbyint(part[i] / block->scale);
      block->codes[i] = static_cast<std::int8_t>(std::clamp(code, -127.0f, 127.0f));
    }
    values = values.subspan(part.size());
  }
}

void dequantize(View values, const void* blocks) {
  HWY_DYNAMIC_DISPATCH(dequantize_views)(values, blocks);
}

namespace {

// Adds f32 parts piece by piece, so that the sums stay in the cache until they are rounded.
void reduce_and_round(View dst, ConstView parts, Reduction rule) {
  constexpr std::uint64_t most = 4096;
  std::array<float, most> sums;
  std::vector<const void*> from;
  for (std::uint64_t at = 0; at < dst.count; at += most) {
    const std::uint64_t n = std::min(most, dst.count - at);
    from.clear();
    for (std::uint64_t first = at; first < parts.count; first += dst.count) {
      from.push_back(parts.part(first, n).data);
    }
    void* const to = sums.data();
    rule.dsts = {&to, 1};
    rule.parts = from;
    rule.count = n;
    rule.dtype = DType::f32;
    reduce_into(rule);
    cast(dst.part(at, n), {to, n, DType::f32});
  }
}

}  // namespace

void reduce(View dst, std::span<const void* const> parts, ReduceOp op) {
  reduce_into(
      {.dsts = {&dst.data, 1}, .parts = parts, .count = dst.count, .dtype = dst.dtype, .op = op});
}

void pack_rows(View dst, ConstView src, const RowGrid& grid, double factor) {
  if (grid.count == 0) return;
  for (std::uint64_t c = 0, at = 0; c < grid.columns; ++c) {
    for (std::uint64_t r = 0; r < grid.rows; ++r, at += grid.count) {
      cast(dst.part(at, grid.count),
           src.part(grid.first + (r * grid.columns + c) * grid.stride, grid.count));
    }
  }
  if (factor != 1.0) reduce(dst, dst, {.factors = &factor});
}

void reduce(View dst, ConstView parts, Reduction rule) {
  if (dst.count == 0) return;
  if (dst.dtype != parts.dtype) return reduce_and_round(dst, parts, rule);
  std::vector<const void*> from;
  for (std::uint64_t first = 0; first < parts.count; first += dst.count) {
    from.push_back(parts.part(first, dst.count).data);
  }
  rule.dsts = {&dst.data, 1};
  rule.parts = from;
  rule.count = dst.count;
  rule.dtype = dst.dtype;
  reduce_into(rule);
}

void sum_squares(double* out, const float* src, std::uint64_t count) {
  HWY_DYNAMIC_DISPATCH(sum_squares_blocks)(out, src, count);
}

namespace {

AdamWFactors factors_of(const AdamWStep& s) {
  const auto correction = [&s](float beta) {
    return 1.0 - std::pow(static_cast<double>(beta), *s.steps);
  };
  return {s.scale ? static_cast<float>(*s.scale) : 1.0f, 1.0f - s.learning_rate * s.weight_decay,
          static_cast<float>(static_cast<double>(s.learning_rate) / correction(s.beta1)),
          static_cast<float>(1.0 / std::sqrt(correction(s.beta2)))};
}

}  // namespace

void adamw(const AdamWStep& step) {
  if (step.scale && !std::isfinite(*step.scale))
    return;  // a step with an infinite or NaN norm changes nothing
  HWY_DYNAMIC_DISPATCH(adamw_step)(step, factors_of(step));
  if (step.weights_low.count) cast(step.weights_low, step.weights);
}

void sgd(const SgdStep& step) {
  if (step.scale && !std::isfinite(*step.scale)) return;
  HWY_DYNAMIC_DISPATCH(sgd_loop)(step);
  if (step.weights_low.count) cast(step.weights_low, step.weights);
}

void fill_normal(float* dst, std::uint64_t count, const NormalFill& fill) {
  const std::uint64_t key = mix(mix(fill.seed + 0x9e3779b97f4a7c15u) ^ fill.stream);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t random = mix(key + (fill.first + i + 1) * 0x9e3779b97f4a7c15u);
    // Box-Muller on two uniforms in (0, 1].
    const double u = (static_cast<double>(random >> 32) + 1.0) * 0x1p-32;
    const double v = (static_cast<double>(random & 0xffffffffu) + 1.0) * 0x1p-32;
    const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
    dst[i] = fill.mean + fill.deviation * static_cast<float>(normal);
  }
}

}  // namespace atoll_v1::atoll::cpu
#endif  // HWY_ONCE
