// Kernels that reduce over a row: RMSNorm and cross entropy.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "model/cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu/row_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

using atoll::bfloat16;
using atoll::DType;

template <class T>
void rms_norm_typed(const RmsNormForward& args, Range tokens) {
  const std::size_t width = to_size(args.width);
  const T* weight = args.weight.as<T>();
  for (std::size_t token = tokens.first; token < tokens.last; ++token) {
    const T* x = args.x.as<T>() + token * width;
    T* y = args.y.as<T>() + token * width;
    const float squares = sum_lanes(width, [&](auto d, std::size_t i) HWY_ATTR {
      const auto v = load(d, x + i);
      return hn::Mul(v, v);
    });
    const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(width) + args.eps);
    args.inverse.as<float>()[token] = inverse;
    for_lanes(0, width, [&](auto d, std::size_t i) HWY_ATTR {
      const auto normal = hn::Mul(load(d, x + i), hn::Set(d, inverse));
      store(d, hn::Mul(normal, load(d, weight + i)), y + i);
    });
  }
}

void rms_norm_forward(const RmsNormForward& args, Range tokens) {
  with_type(args.x.dtype, [&](auto zero) { rms_norm_typed<decltype(zero)>(args, tokens); });
}

// With r = 1 / rms and g = dy * weight: dx = r g - x r^3 mean(g x); dweight = sum of dy x r.
template <class T, bool accumulate>
void rms_norm_backward_typed(const RmsNormBackward& args, Range tokens, float* partial) {
  const std::size_t width = to_size(args.width);
  const T* weight = args.weight.as<T>();
  if (partial != nullptr) std::fill_n(partial, width, 0.0F);
  for (std::size_t token = tokens.first; token < tokens.last; ++token) {
    const T* x = args.x.as<T>() + token * width;
    const T* dy = args.dy.as<T>() + token * width;
    T* dx = args.dx.as<T>() + token * width;
    const float r = args.inverse.as<float>()[token];
    const float dot = sum_lanes(width, [&](auto d, std::size_t i) HWY_ATTR {
      return hn::Mul(hn::Mul(load(d, dy + i), load(d, weight + i)), load(d, x + i));
    });
    const float along = -r * r * r * (dot / static_cast<float>(width));
    if (partial != nullptr) {
      for_lanes(0, width, [&](auto d, std::size_t i) HWY_ATTR {
        const auto normal = hn::Mul(load(d, x + i), hn::Set(d, r));
        store(d, hn::MulAdd(load(d, dy + i), normal, load(d, partial + i)), partial + i);
      });
    }
    for_lanes(0, width, [&](auto d, std::size_t i) HWY_ATTR {
      const auto g = hn::Mul(load(d, dy + i), load(d, weight + i));
      auto value = hn::MulAdd(g, hn::Set(d, r), hn::Mul(load(d, x + i), hn::Set(d, along)));
      if constexpr (accumulate) value = hn::Add(value, load(d, dx + i));
      store(d, value, dx + i);
    });
  }
}

void rms_norm_backward(const RmsNormBackward& args, Range tokens, float* partial) {
  with_type(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.dx_mode == WriteMode::accumulate) {
      rms_norm_backward_typed<T, true>(args, tokens, partial);
    } else {
      rms_norm_backward_typed<T, false>(args, tokens, partial);
    }
  });
}

void rms_norm_weight(const RmsNormBackward& args, const float* partials, std::size_t count,
                     Range columns) {
  const std::size_t width = to_size(args.width);
  float* dweight = args.dweight.as<float>();
  const bool accumulate = args.dweight_mode == WriteMode::accumulate;
  for_lanes(columns.first, columns.last, [&](auto d, std::size_t i) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::size_t p = 0; p < count; ++p) sum = hn::Add(sum, load(d, partials + p * width + i));
    if (accumulate) sum = hn::Add(sum, load(d, dweight + i));
    store(d, sum, dweight + i);
  });
}

template <class T>
HWY_INLINE float row_maximum(const T* logits, std::size_t n) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const float lowest = -std::numeric_limits<float>::infinity();
  auto best = hn::Set(d, lowest);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) best = hn::Max(best, load(d, logits + i));
  float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < n; ++i) maximum = std::max(maximum, hn::GetLane(load(OneFloat(), logits + i)));
  return maximum;
}

// Returns the sum of exp(logit - maximum), which is NaN if a logit is NaN or +infinity. Replaces
// f32 logits with these exponentials, so that the gradient need not recompute them.
template <class T>
HWY_INLINE float sum_exponentials(T* logits, std::size_t n, float maximum) {
  return sum_lanes(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto e = exponential(d, hn::Sub(load(d, logits + i), hn::Set(d, maximum)));
    if constexpr (std::is_same_v<T, float>) store(d, e, logits + i);
    return e;
  });
}

// dlogits = factor * exponentials; runs after sum_exponentials().
template <class In, class Out>
HWY_INLINE void scaled_softmax(const In* logits, Out* dlogits, std::size_t n, float maximum,
                               float factor) {
  for_lanes(0, n, [&](auto d, std::size_t i) HWY_ATTR {
    auto e = load(d, logits + i);
    if constexpr (!std::is_same_v<In, float>) e = exponential(d, hn::Sub(e, hn::Set(d, maximum)));
    store(d, hn::Mul(e, hn::Set(d, factor)), dlogits + i);
  });
}

template <class In, class Out>
void cross_entropy_typed(const CrossEntropy& args, Range tokens, double* row_loss) {
  const std::size_t vocab = to_size(args.vocab);
  const std::int32_t* labels = args.labels.as<std::int32_t>();
  const bool gradient = args.dlogits.count != 0;
  for (std::size_t token = tokens.first; token < tokens.last; ++token) {
    In* logits = args.logits.as<In>() + token * vocab;
    Out* dlogits = args.dlogits.as<Out>() + token * vocab;
    row_loss[token] = 0;
    if (labels[token] < 0) {
      if (gradient) std::fill_n(dlogits, vocab, Out{});
      continue;
    }
    const auto label = static_cast<std::size_t>(labels[token]);
    const OneFloat one;
    const float maximum = row_maximum(logits, vocab);
    const float below = hn::GetLane(load(one, logits + label)) - maximum;
    const float sum = sum_exponentials(logits, vocab, maximum);
    const float log_sum = std::log(sum);
    row_loss[token] = static_cast<double>(log_sum) - static_cast<double>(below);
    if (!gradient) continue;
    scaled_softmax(logits, dlogits, vocab, maximum, args.scale / sum);
    // The label's element is recomputed, because p - 1 would cancel for p near 1.
    store(one, hn::Set(one, std::expm1(below - log_sum) * args.scale), dlogits + label);
  }
}

void cross_entropy(const CrossEntropy& args, Range tokens, double* row_loss) {
  with_type(args.logits.dtype, [&](auto in) {
    with_type(args.dlogits.dtype, [&](auto out) {
      cross_entropy_typed<decltype(in), decltype(out)>(args, tokens, row_loss);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace train::cpu {

ATOLL_DISPATCH(void, rms_norm_forward, (const RmsNormForward& args, Range tokens), args, tokens)
ATOLL_DISPATCH(void, rms_norm_backward, (const RmsNormBackward& args, Range tokens, float* partial),
               args, tokens, partial)
ATOLL_DISPATCH(void, rms_norm_weight,
               (const RmsNormBackward& args, const float* partials, std::size_t count,
                Range columns),
               args, partials, count, columns)
ATOLL_DISPATCH(void, cross_entropy, (const CrossEntropy& args, Range tokens, double* row_loss),
               args, tokens, row_loss)

}  // namespace train::cpu
#endif
