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
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    add_typed(a.as<T>(), b.as<T>(), out.as<T>(), range);
  });
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
  with_type(gate.dtype, [&](auto zero) {
    using T = decltype(zero);
    swiglu_typed(gate.as<T>(), up.as<T>(), out.as<T>(), range);
  });
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
  with_type(args.gate.dtype,
            [&](auto zero) { swiglu_backward_typed<decltype(zero)>(args, range); });
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
  with_type(args.x.dtype, [&](auto zero) { rope_typed<decltype(zero)>(args, tokens); });
}

template <class From, class To>
void convert_typed(const From* from, To* to, Range range) {
  for_lanes(range.first, range.last,
            [&](auto d, std::size_t i) HWY_ATTR { store(d, load(d, from + i), to + i); });
}

void convert(const ConstView& from, const View& to, Range range) {
  with_type(from.dtype, [&](auto in) {
    with_type(to.dtype, [&](auto out) {
      convert_typed(from.as<decltype(in)>(), to.as<decltype(out)>(), range);
    });
  });
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
  with_type(args.dy.dtype,
            [&](auto zero) { embedding_backward_typed<decltype(zero)>(args, columns); });
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace train::cpu {

using atoll::ConstView;
using atoll::View;

ATOLL_DISPATCH(void, add, (ConstView a, ConstView b, View out, Range r), a, b, out, r)
ATOLL_DISPATCH(void, swiglu_forward, (ConstView gate, ConstView up, View out, Range r), gate, up,
               out, r)
ATOLL_DISPATCH(void, swiglu_backward, (const SwigluBackward& args, Range r), args, r)
ATOLL_DISPATCH(void, rope, (const Rope& args, Range tokens), args, tokens)
ATOLL_DISPATCH(void, convert, (ConstView from, View to, Range r), from, to, r)
ATOLL_DISPATCH(void, embedding_backward, (const EmbeddingBackward& args, Range columns), args,
               columns)

}  // namespace train::cpu
#endif
