// Kernels that touch each element once: sums, SwiGLU, rotary embedding, conversions, and the
// gradient of the embedding table.
#include <cstring>

#include "model/cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

using atoll::bfloat16;
using atoll::ConstView;
using atoll::DType;
using atoll::View;

template <class T>
void add_typed(const T* a, const T* b, T* out, Range range) {
  for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
    store(d, hn::Add(load(d, a + i), load(d, b + i)), out + i);
  });
}

void add(const ConstView& a, const ConstView& b, const View& out, Range range) {
  if (a.dtype == DType::bf16) {
    add_typed(a.as<bfloat16>(), b.as<bfloat16>(), out.as<bfloat16>(), range);
  } else {
    add_typed(a.as<float>(), b.as<float>(), out.as<float>(), range);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exponential(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0F)))));
}

template <class T>
void swiglu_typed(const T* gate, const T* up, T* out, Range range) {
  for_lanes(range.first, range.last, [&](auto d, std::size_t i) HWY_ATTR {
    const auto g = load(d, gate + i);
    store(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), load(d, up + i)), out + i);
  });
}

void swiglu_forward(const ConstView& gate, const ConstView& up, const View& out, Range range) {
  if (gate.dtype == DType::bf16) {
    swiglu_typed(gate.as<bfloat16>(), up.as<bfloat16>(), out.as<bfloat16>(), range);
  } else {
    swiglu_typed(gate.as<float>(), up.as<float>(), out.as<float>(), range);
  }
}

// With s = sigmoid(g): d(silu)/dg = s + g s (1 - s).
template <class T>
void swiglu_backward_typed(const SwigluBackward& args, Range range) {
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
}

void swiglu_backward(const SwigluBackward& args, Range range) {
  if (args.gate.dtype == DType::bf16) {
    swiglu_backward_typed<bfloat16>(args, range);
  } else {
    swiglu_backward_typed<float>(args, range);
  }
}

template <class T>
void rope_typed(const Rope& args, Range tokens) {
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
}

void rope(const Rope& args, Range tokens) {
  if (args.x.dtype == DType::bf16) {
    rope_typed<bfloat16>(args, tokens);
  } else {
    rope_typed<float>(args, tokens);
  }
}

template <class From, class To>
void convert_typed(const From* from, To* to, Range range) {
  for_lanes(range.first, range.last,
            [&](auto d, std::size_t i) HWY_ATTR { store(d, load(d, from + i), to + i); });
}

void convert(const ConstView& from, const View& to, Range range) {
  const bool from_low = from.dtype == DType::bf16;
  const bool to_low = to.dtype == DType::bf16;
  if (from_low && to_low) convert_typed(from.as<bfloat16>(), to.as<bfloat16>(), range);
  if (from_low && !to_low) convert_typed(from.as<bfloat16>(), to.as<float>(), range);
  if (!from_low && to_low) convert_typed(from.as<float>(), to.as<bfloat16>(), range);
  if (!from_low && !to_low) convert_typed(from.as<float>(), to.as<float>(), range);
}

template <class T>
void embedding_backward_typed(const EmbeddingBackward& args, Range columns) {
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
}

void embedding_backward(const EmbeddingBackward& args, Range columns) {
  if (args.dy.dtype == DType::bf16) {
    embedding_backward_typed<bfloat16>(args, columns);
  } else {
    embedding_backward_typed<float>(args, columns);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace train::cpu {

HWY_EXPORT(add);
HWY_EXPORT(swiglu_forward);
HWY_EXPORT(swiglu_backward);
HWY_EXPORT(rope);
HWY_EXPORT(convert);
HWY_EXPORT(embedding_backward);

void add(atoll::ConstView a, atoll::ConstView b, atoll::View out, Range elements) {
  HWY_DYNAMIC_DISPATCH(add)(a, b, out, elements);
}
void swiglu_forward(atoll::ConstView gate, atoll::ConstView up, atoll::View out, Range elements) {
  HWY_DYNAMIC_DISPATCH(swiglu_forward)(gate, up, out, elements);
}
void swiglu_backward(const SwigluBackward& args, Range elements) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward)(args, elements);
}
void rope(const Rope& args, Range tokens) { HWY_DYNAMIC_DISPATCH(rope)(args, tokens); }
void convert(atoll::ConstView from, atoll::View to, Range elements) {
  HWY_DYNAMIC_DISPATCH(convert)(from, to, elements);
}
void embedding_backward(const EmbeddingBackward& args, Range columns) {
  HWY_DYNAMIC_DISPATCH(embedding_backward)(args, columns);
}

}  // namespace train::cpu
#endif
