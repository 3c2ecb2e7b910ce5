// What the f32 and bf16 attention kernels share: sizes, blocks of queries, visible keys, softmax
// and results.
// Highway's foreach_target includes this file once per target, hence no #pragma once.
#if defined(TRAIN_MODEL_CPU_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRAIN_MODEL_CPU_ATTENTION_INL_H
#undef TRAIN_MODEL_CPU_ATTENTION_INL_H
#else
#define TRAIN_MODEL_CPU_ATTENTION_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "model/cpu/kernels.hpp"
#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

// Rounds n up to a multiple of `pad`.
constexpr std::size_t padded(std::size_t n, std::size_t pad) { return (n + pad - 1) / pad * pad; }

// Rows of a block of queries, a multiple of `pad`. A block of scores (rows x keys) should fit the
// second-level cache.
inline std::size_t block_rows(std::size_t seq_pad, std::size_t pad) {
  constexpr std::size_t score_floats = 64 * 1024;
  return std::clamp<std::size_t>(score_floats / seq_pad / pad * pad, pad, 64);
}

struct Sizes {
  std::size_t pad;  // the kernel pads all sizes to a multiple of this
  std::size_t seq, seq_pad, dim, dim_pad, group, heads, kv_heads, window, block;
  float scale;                              // factor of the scores
  const std::int32_t* positions = nullptr;  // positions in one row; null if the row is one document
  Sizes(const AttentionShape& shape, std::size_t pad_)
      : pad(pad_),
        seq(to_size(shape.seq)),
        seq_pad(padded(seq, pad)),
        dim(to_size(shape.head_dim)),
        dim_pad(padded(dim, pad)),
        group(to_size(shape.heads / shape.kv_heads)),
        heads(to_size(shape.heads)),
        kv_heads(to_size(shape.kv_heads)),
        window(shape.window > 0 ? to_size(std::min(shape.window, shape.seq)) : seq),
        block(block_rows(seq_pad, pad)),
        scale(1.0F / std::sqrt(static_cast<float>(dim))) {}
  Sizes(const AttentionShape& shape, std::size_t pad_, const atoll::ConstView& positions_of_rows,
        std::size_t row)
      : Sizes(shape, pad_) {
    if (positions_of_rows.count != 0) {
      positions = positions_of_rows.as<std::int32_t>() + row * seq;
    }
  }
  // Returns the first key that a query sees. It never decreases from one query to the next.
  std::size_t first_key(std::size_t query) const {
    const std::size_t in_window = query + 1 > window ? query + 1 - window : 0;
    if (positions == nullptr) return in_window;
    return std::max(in_window, query - static_cast<std::size_t>(positions[query]));
  }
};

// The log-sum-exp of one head and row, indexed by query.
struct Statistics {
  float* first;
  std::size_t stride;
  float& operator[](std::size_t query) const { return first[query * stride]; }
};

inline Statistics statistics(const Sizes& sizes, const atoll::ConstView& lse, std::size_t row,
                             std::size_t head) {
  auto* all = const_cast<float*>(lse.as<float>());
  if (sizes.positions == nullptr) return {all + (row * sizes.heads + head) * sizes.seq, 1};
  return {all + row * sizes.seq * sizes.heads + head, sizes.heads};
}

// Query rows [first, first + rows) and the padded range [low, low + span) of keys that they see.
struct Block {
  std::size_t first, rows, low, span;
};

inline Block block_at(const Sizes& sizes, std::size_t first) {
  const std::size_t rows = std::min(sizes.block, sizes.seq - first);
  const std::size_t low = sizes.first_key(first) / sizes.pad * sizes.pad;
  return {first, rows, low, padded(first + rows, sizes.pad) - low};
}

// Takes the next piece of a task's scratch memory. Every piece is a multiple of 64 bytes.
inline float* take(float*& memory, std::size_t floats) {
  return std::exchange(memory, memory + floats);
}

// One head of an activation: rows of head_dim elements, `stride` apart.
template <class T>
struct Slice {
  T* data;
  std::size_t stride;
};

// The columns of keys that a query sees, in a row of scores that starts at key `origin`. Column
// numbers are below 2^24, so f32 represents them exactly.
struct Visible {
  std::size_t begin, end;  // columns of the whole SIMD vectors that contain visible columns
  float low, high;         // first and last visible column
  Visible(const Sizes& sizes, std::size_t query, std::size_t origin) {
    const std::size_t lanes = hn::Lanes(Floats());
    const std::size_t first = sizes.first_key(query) - origin;
    const std::size_t last = query - origin;
    begin = first / lanes * lanes;
    end = (last / lanes + 1) * lanes;
    low = static_cast<float>(first);
    high = static_cast<float>(last);
  }
  HWY_INLINE auto mask(Floats d, std::size_t column) const {
    const auto index = hn::Iota(d, static_cast<float>(column));
    return hn::And(hn::Ge(index, hn::Set(d, low)), hn::Le(index, hn::Set(d, high)));
  }
};

// Turns scores into exp(scale (score - maximum)), or 0 for invisible keys. Writes the sum of them
// and returns the log-sum-exp of the scaled scores.
HWY_INLINE float softmax_row(float* row, std::size_t span, float scale, const Visible& visible,
                             float* total) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto best = lowest;
  for (std::size_t c = visible.begin; c < visible.end; c += lanes) {
    best = hn::Max(best, hn::IfThenElse(visible.mask(d, c), hn::LoadU(d, row + c), lowest));
  }
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
  const auto top = hn::Set(d, maximum);
  const auto factor = hn::Set(d, scale);
  auto sum = hn::Zero(d);
  for (std::size_t c = visible.begin; c < visible.end; c += lanes) {
    const auto e = exponential(d, hn::Mul(factor, hn::Sub(hn::LoadU(d, row + c), top)));
    const auto kept = hn::IfThenElseZero(visible.mask(d, c), e);
    hn::StoreU(kept, d, row + c);
    sum = hn::Add(sum, kept);
  }
  std::fill(row, row + visible.begin, 0.0F);
  std::fill(row + visible.end, row + span, 0.0F);
  *total = hn::GetLane(hn::SumOfLanes(d, sum));
  return scale * maximum + std::log(*total);
}

// Turns scores S into P = exp(scale S - lse), and dprobs from dP into dS = P (dP - delta).
HWY_INLINE void softmax_backward_row(float* scores, float* dprobs, std::size_t span, float scale,
                                     const Visible& visible, float lse, float delta) {
  const Floats d;
  const auto factor = hn::Set(d, scale);
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t c = visible.begin; c < visible.end; c += lanes) {
    const auto e = exponential(d, hn::MulSub(hn::LoadU(d, scores + c), factor, hn::Set(d, lse)));
    const auto p = hn::IfThenElseZero(visible.mask(d, c), e);
    hn::StoreU(p, d, scores + c);
    hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, dprobs + c), hn::Set(d, delta))), d, dprobs + c);
  }
  std::fill(scores, scores + visible.begin, 0.0F);
  std::fill(scores + visible.end, scores + span, 0.0F);
  std::fill(dprobs, dprobs + visible.begin, 0.0F);
  std::fill(dprobs + visible.end, dprobs + span, 0.0F);
}

// Computes P and dS of a block of a head from its scores and dP.
template <class T>
void softmax_backward(const AttentionBackward& args, const Sizes& sizes, const Block& block,
                      std::size_t row, std::size_t head, float* scores, float* dprobs) {
  const std::size_t q_width = sizes.heads * sizes.dim;
  const std::size_t at = (row * sizes.seq + block.first) * q_width + head * sizes.dim;
  const Statistics lse = statistics(sizes, args.lse, row, head);
  for (std::size_t r = 0; r < block.rows; ++r) {
    const T* out = args.out.as<T>() + at + r * q_width;
    const T* dout = args.dout.as<T>() + at + r * q_width;
    const float delta = sum_lanes(sizes.dim, [&](auto d, std::size_t i) HWY_ATTR {
      return hn::Mul(load(d, out + i), load(d, dout + i));
    });
    softmax_backward_row(scores + r * block.span, dprobs + r * block.span, block.span, sizes.scale,
                         Visible(sizes, block.first + r, block.low), lse[block.first + r], delta);
  }
}

// Writes scale * from to `to`. The rows of `from` have dim_pad elements, and the padding is
// dropped.
template <class T>
void unpack(const float* from, const Sizes& sizes, std::size_t rows, float scale,
            const Slice<T>& to) {
  for (std::size_t row = 0; row < rows; ++row) {
    const float* source = from + row * sizes.dim_pad;
    T* target = to.data + row * to.stride;
    for_lanes(0, sizes.dim, [&](auto d, std::size_t i) HWY_ATTR {
      store(d, hn::Mul(load(d, source + i), hn::Set(d, scale)), target + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#endif
