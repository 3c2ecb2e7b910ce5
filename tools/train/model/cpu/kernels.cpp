// Kernels that touch each element once (sums, biases, SwiGLU, rotary embedding, conversions, the
// gradient of the embedding table) and kernels that reduce over a row (RMSNorm, cross entropy).
#include "model/cpu/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "model/cpu/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu/kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

using atoll::ConstView;
using atoll::View;

void add(const ConstView& a, const ConstView& b, const View& out, Range range) {
  with_type(a.dtype, [&]<class T>(T) HWY_ATTR {
    const T *left = a.as<T>(), *right = b.as<T>();
    T* to = out.as<T>();
    for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
      store(d, hn::Add(load(d, left + i), load(d, right + i)), to + i);
    });
  });
}

void scale(const Scale& args, Range range) {
  with_type(args.x.dtype, [&]<class T>(T) HWY_ATTR {
    T* const to = args.x.as<T>();
    const float factor = args.factor;
    for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
      store(d, hn::Mul(load(d, to + i), hn::Set(d, factor)), to + i);
    });
  });
}

void add_bias(const AddBias& args, Range rows) {
  with_type(args.y.dtype, [&]<class T>(T) HWY_ATTR {
    const std::size_t width = args.bias.count;
    const T* const values = args.bias.as<T>();
    for (std::size_t row = rows.first; row < rows.last; ++row) {
      T* const to = args.y.as<T>() + row * width;
      for_lanes(0, width, [&](auto d, std::size_t i) HWY_ATTR {
        store(d, hn::Add(load(d, to + i), load(d, values + i)), to + i);
      });
    }
  });
}

void bias_backward(const BiasBackward& args, Range columns) {
  with_type(args.dy.dtype, [&]<class T>(T) HWY_ATTR {
    const std::size_t width = to_size(args.width);
    float* const to = args.dbias.as<float>();
    if (args.mode == WriteMode::overwrite) {
      std::fill(to + columns.first, to + columns.last, 0.0F);
    }
    for (std::size_t row = 0; row < args.dy.count / width; ++row) {
      const T* const from = args.dy.as<T>() + row * width;
      for_lanes(columns.first, columns.last, [&](auto d, std::size_t i) HWY_ATTR {
        store(d, hn::Add(load(d, to + i), load(d, from + i)), to + i);
      });
    }
  });
}

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exponential(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0F)))));
}

void swiglu_forward(const SwigluForward& args, Range range) {
  with_type(args.gate.dtype, [&]<class T>(T) HWY_ATTR {
    const T *gates = args.gate.as<T>(), *ups = args.up.as<T>();
    T* to = args.out.as<T>();
    for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
      const auto g = load(d, gates + i);
      store(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), load(d, ups + i)), to + i);
    });
  });
}

// With s = sigmoid(g): d(silu)/dg = s + g s (1 - s).
void swiglu_backward(const SwigluBackward& args, Range range) {
  with_type(args.gate.dtype, [&]<class T>(T) HWY_ATTR {
    const T* gate = args.gate.as<T>();
    const T* up = args.up.as<T>();
    const T* dout = args.dout.as<T>();
    T* dgate = args.dgate.as<T>();
    T* dup = args.dup.as<T>();
    for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
      const auto g = load(d, gate + i);
      const auto u = load(d, up + i);
      const auto dy = load(d, dout + i);
      const auto s = sigmoid(d, g);
      const auto silu = hn::Mul(g, s);
      const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1.0F), s), s);
      store(d, hn::Mul(hn::Mul(dy, u), slope), dgate + i);
      store(d, hn::Mul(dy, silu), dup + i);
    });
  });
}

void rope(const Rope& args, Range tokens) {
  with_type(args.x.dtype, [&]<class T>(T) HWY_ATTR {
    const std::size_t head_dim = to_size(args.head_dim);
    const std::size_t half = head_dim / 2;
    const std::size_t width = to_size(args.heads) * head_dim;
    const float direction = args.direction == RopeDirection::inverse ? -1.0F : 1.0F;
    const auto* positions = args.positions.as<std::int32_t>();
    for (std::size_t token = tokens.first; token < tokens.last; ++token) {
      const std::size_t position = args.positions.count == 0
                                       ? token % to_size(args.seq)
                                       : static_cast<std::size_t>(positions[token]);
      const float* cosine = args.table.as<float>() + position * head_dim;
      const float* sine = cosine + half;
      T* row = args.x.as<T>() + token * width;
      for (T* low = row; low < row + width; low += head_dim) {
        T* high = low + half;
        for_lanes(0, half, [&](auto d, std::size_t k) HWY_ATTR {
          const auto a = load(d, low + k);
          const auto b = load(d, high + k);
          const auto c = load(d, cosine + k);
          const auto s = hn::Mul(load(d, sine + k), hn::Set(d, direction));
          store(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), low + k);
          store(d, hn::MulAdd(a, s, hn::Mul(b, c)), high + k);
        });
      }
    }
  });
}

void convert(const ConstView& from, const View& to, Range range) {
  with_type(from.dtype, [&]<class From>(From) {
    with_type(to.dtype, [&]<class To>(To) HWY_ATTR {
      const From* in = from.as<From>();
      To* out = to.as<To>();
      for_lanes(range.first, range.last,
                [&](auto d, std::size_t i) HWY_ATTR { store(d, load(d, in + i), out + i); });
    });
  });
}

void embedding_backward(const EmbeddingBackward& args, Range columns) {
  with_type(args.dy.dtype, [&]<class T>(T) HWY_ATTR {
    const std::size_t width = to_size(args.width);
    const std::int32_t* tokens = args.tokens.as<std::int32_t>();
    const T* dy = args.dy.as<T>();
    float* dtable = args.dtable.as<float>();
    if (args.mode == WriteMode::overwrite) {
      for (std::size_t row = 0; row < to_size(args.vocab); ++row) {
        std::memset(dtable + row * width + columns.first, 0,
                    (columns.last - columns.first) * sizeof(float));
      }
    }
    for (std::size_t i = 0; i < args.tokens.count; ++i) {
      float* to = dtable + static_cast<std::size_t>(tokens[i]) * width;
      const T* from = dy + i * width;
      for_lanes(columns.first, columns.last, [&](auto d, std::size_t c) HWY_ATTR {
        store(d, hn::Add(load(d, to + c), load(d, from + c)), to + c);
      });
    }
  });
}

void rms_norm_forward(const RmsNormForward& args, Range tokens) {
  with_type(args.x.dtype, [&]<class T>(T) HWY_ATTR {
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
  });
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
  auto even = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto odd = even;
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Max(even, load(d, logits + i));
    odd = hn::Max(odd, load(d, logits + i + lanes));
  }
  float maximum = hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
  for (; i < n; ++i) maximum = std::max(maximum, hn::GetLane(load(OneFloat(), logits + i)));
  return maximum;
}

// Writes exp(logit - maximum) to `to` and returns their sum, which is NaN if a logit is NaN or
// +infinity.
template <class T>
HWY_INLINE float exponentials(const T* logits, std::size_t n, float maximum, float* to) {
  return sum_lanes(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto e = exponential(d, hn::Sub(load(d, logits + i), hn::Set(d, maximum)));
    store(d, e, to + i);
    return e;
  });
}

template <class In, class Out>
void cross_entropy_typed(const CrossEntropy& args, Range tokens, double* row_loss) {
  const std::size_t vocab = to_size(args.vocab);
  const std::int32_t* labels = args.labels.as<std::int32_t>();
  const bool gradient = args.dlogits.count != 0;
  Scratch scratch;  // exponentials of a row of bf16 logits; with f32 they overwrite the logits
  for (std::size_t token = tokens.first; token < tokens.last; ++token) {
    In* logits = args.logits.as<In>() + token * vocab;
    Out* dlogits = gradient ? args.dlogits.as<Out>() + token * vocab : nullptr;
    row_loss[token] = 0;
    if (labels[token] < 0) {
      if (gradient) std::fill_n(dlogits, vocab, Out{});
      continue;
    }
    const auto label = static_cast<std::size_t>(labels[token]);
    const OneFloat one;
    const float maximum = row_maximum(logits, vocab);
    const float below = hn::GetLane(load(one, logits + label)) - maximum;
    float* row = nullptr;
    if constexpr (std::is_same_v<In, float>) {
      row = logits;
    } else {
      row = scratch.reserve(vocab);
    }
    const float sum = exponentials(logits, vocab, maximum, row);
    const float log_sum = std::log(sum);
    row_loss[token] = static_cast<double>(log_sum) - static_cast<double>(below);
    if (!gradient) continue;
    const float factor = args.scale / sum;
    for_lanes(0, vocab, [&](auto d, std::size_t i) HWY_ATTR {
      store(d, hn::Mul(load(d, row + i), hn::Set(d, factor)), dlogits + i);
    });
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

using atoll::ConstView;
using atoll::View;

ATOLL_DISPATCH(void, add, (ConstView a, ConstView b, View out, Range r), a, b, out, r)
ATOLL_DISPATCH(void, scale, (const Scale& args, Range r), args, r)
ATOLL_DISPATCH(void, add_bias, (const AddBias& args, Range rows), args, rows)
ATOLL_DISPATCH(void, bias_backward, (const BiasBackward& args, Range columns), args, columns)
ATOLL_DISPATCH(void, swiglu_forward, (const SwigluForward& args, Range r), args, r)
ATOLL_DISPATCH(void, swiglu_backward, (const SwigluBackward& args, Range r), args, r)
ATOLL_DISPATCH(void, rope, (const Rope& args, Range tokens), args, tokens)
ATOLL_DISPATCH(void, convert, (ConstView from, View to, Range r), from, to, r)
ATOLL_DISPATCH(void, embedding_backward, (const EmbeddingBackward& args, Range columns), args,
               columns)
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
