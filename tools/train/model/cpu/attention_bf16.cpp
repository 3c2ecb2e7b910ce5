// Causal attention in bf16 with f32 sums, for processors with bf16 instructions. The blocks and the
// formulas are those of attention.cpp. Scores, softmax and its derivative are f32; products take
// them rounded to bf16.
//
// A product sums over pairs of rows of its right operand (see bf16_product.hpp), and its left
// operand has the summed index in its rows. So backward computes dK and dV transposed:
//   dK^T += Q^T dS    dV^T += dO^T P
// and each operand is either interleaved or transposed in 32-bit elements.
#include <algorithm>
#include <cstring>

#include "model/cpu/bf16_product.hpp"
#include "model/cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu/attention_bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/cpu/attention-inl.h"
#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {
namespace {  // unnamed, because attention.cpp has functions of the same names

using atoll::bfloat16;
using Half = std::uint16_t;  // the bits of a bf16 value
using Pair = std::uint32_t;  // the bits of two bf16 values

// Takes `halves` bf16 values of scratch memory, a multiple of 32.
Half* take_halves(float*& memory, std::size_t halves) {
  return reinterpret_cast<Half*>(take(memory, halves / 2));
}

Pair* take_pairs(float*& memory, std::size_t pairs) {
  return reinterpret_cast<Pair*>(take(memory, pairs));
}

// to[padded rows][dim_pad] = from, with zero padding.
void pack(const Slice<const bfloat16>& from, const Sizes& sizes, std::size_t rows, Half* to) {
  for (std::size_t row = 0; row < rows; ++row) {
    Half* target = to + row * sizes.dim_pad;
    std::memcpy(target, from.data + row * from.stride, sizes.dim * sizeof(Half));
    std::fill(target + sizes.dim, target + sizes.dim_pad, Half{0});
  }
  std::fill(to + rows * sizes.dim_pad, to + padded(rows, sizes.pad) * sizes.dim_pad, Half{0});
}

// to[rows / 2][width]: element j of row i holds from[2i][j] and, in its high half, from[2i + 1][j].
void interleave(const Half* from, std::size_t rows, std::size_t width, Pair* to) {
  const hn::ScalableTag<Pair> d;
  const hn::Rebind<Half, decltype(d)> d16;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t row = 0; row < rows; row += 2, from += 2 * width, to += width) {
    for (std::size_t i = 0; i < width; i += lanes) {
      const auto low = hn::PromoteTo(d, hn::LoadU(d16, from + i));
      const auto high = hn::PromoteTo(d, hn::LoadU(d16, from + width + i));
      hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), d, to + i);
    }
  }
}

// to[columns][rows] = from[rows][columns], in squares that fit the first-level cache. Both numbers
// are multiples of 16.
template <class T>
void transpose(const T* from, std::size_t rows, std::size_t columns, T* to) {
  static_assert(sizeof(T) == 4);
  constexpr std::size_t side = 16;
  for (std::size_t row = 0; row < rows; row += side) {
    for (std::size_t i = 0; i < columns; ++i) {
      for (std::size_t r = row; r < row + side; ++r) to[i * rows + r] = from[r * columns + i];
    }
  }
}

// The right operand of a product with the transposed keys or values: pairs of neighbours in a row
// become to[dim_pad / 2][seq_pad].
void pack_columns(const Half* rows, const Sizes& sizes, Pair* to) {
  transpose(reinterpret_cast<const Pair*>(rows), sizes.seq_pad, sizes.dim_pad / 2, to);
}

// Rounds `rows` rows of f32 to bf16, and sets the padding rows to zero.
void round_rows(const float* from, const Sizes& sizes, std::size_t rows, std::size_t width,
                Half* to) {
  round_to_bf16(from, rows * width, to);
  std::fill(to + rows * width, to + padded(rows, sizes.pad) * width, Half{0});
}

struct ForwardScratch {
  Half *rows, *query, *probs;
  Pair *keys_t, *values;
  float *scores, *out;
  ForwardScratch(float* memory, const Sizes& sizes) {
    rows = take_halves(memory, sizes.seq_pad * sizes.dim_pad);
    keys_t = take_pairs(memory, sizes.seq_pad * sizes.dim_pad / 2);
    values = take_pairs(memory, sizes.seq_pad * sizes.dim_pad / 2);
    query = take_halves(memory, sizes.block * sizes.dim_pad);
    probs = take_halves(memory, sizes.block * sizes.seq_pad);
    scores = take(memory, sizes.block * sizes.seq_pad);
    out = take(memory, sizes.block * sizes.dim_pad);
  }
};

std::size_t attention_forward_scratch_bf16(const AttentionShape& shape) {
  const Sizes sizes(shape, bf16_pad);
  return 3 * sizes.seq_pad * sizes.dim_pad / 2 +
         sizes.block * (3 * sizes.dim_pad + 3 * sizes.seq_pad) / 2;
}

void forward_block(const AttentionForward& args, const Sizes& sizes, const Block& block,
                   const AttentionTask& task, std::size_t head, const ForwardScratch& scratch) {
  const std::size_t q_width = sizes.heads * sizes.dim;
  const std::size_t at = (task.row * sizes.seq + block.first) * q_width + head * sizes.dim;
  const std::size_t rows = padded(block.rows, sizes.pad), pad = sizes.dim_pad;
  const Statistics lse = statistics(sizes, args.lse, task.row, head);
  pack({args.q.as<bfloat16>() + at, q_width}, sizes, block.rows, scratch.query);
  multiply(task.bf16, {scratch.query, pad, scratch.keys_t + block.low, sizes.seq_pad,
                       scratch.scores, block.span, rows, block.span, pad, false});
  float sums[64];
  for (std::size_t r = 0; r < block.rows; ++r) {
    lse[block.first + r] = softmax_row(scratch.scores + r * block.span, block.span, sizes.scale,
                                       Visible(sizes, block.first + r, block.low), &sums[r]);
  }
  round_rows(scratch.scores, sizes, block.rows, block.span, scratch.probs);
  multiply(task.bf16, {scratch.probs, block.span, scratch.values + block.low / 2 * pad, pad,
                       scratch.out, pad, rows, pad, block.span, false});
  for (std::size_t r = 0; r < block.rows; ++r) {
    unpack<bfloat16>(scratch.out + r * pad, sizes, 1, 1.0F / sums[r],
                     {args.out.as<bfloat16>() + at + r * q_width, q_width});
  }
}

void attention_forward_bf16(const AttentionForward& args, const AttentionTask& task) {
  const Sizes sizes(args.shape, bf16_pad, args.positions, task.row);
  const ForwardScratch scratch(task.scratch, sizes);
  const std::size_t kv_width = sizes.kv_heads * sizes.dim;
  const std::size_t kv_at = task.row * sizes.seq * kv_width + task.kv_head * sizes.dim;
  pack({args.k.as<bfloat16>() + kv_at, kv_width}, sizes, sizes.seq, scratch.rows);
  pack_columns(scratch.rows, sizes, scratch.keys_t);
  pack({args.v.as<bfloat16>() + kv_at, kv_width}, sizes, sizes.seq, scratch.rows);
  interleave(scratch.rows, sizes.seq_pad, sizes.dim_pad, scratch.values);
  for (std::size_t g = 0; g < sizes.group; ++g) {
    for (std::size_t first = 0; first < sizes.seq; first += sizes.block) {
      forward_block(args, sizes, block_at(sizes, first), task, task.kv_head * sizes.group + g,
                    scratch);
    }
  }
}

struct BackwardScratch {
  Half *rows, *query, *dout, *query_t, *dout_t, *rounded;
  Pair *keys, *keys_t, *values_t, *probs, *dscores, *pairs;
  float *scores, *dprobs, *dquery, *dkeys_t, *dvalues_t;
  BackwardScratch(float* memory, const Sizes& sizes) {
    const std::size_t all = sizes.seq_pad * sizes.dim_pad;
    const std::size_t some = sizes.block * sizes.dim_pad;
    const std::size_t block = sizes.block * sizes.seq_pad;
    rows = take_halves(memory, all);
    for (Pair** piece : {&keys, &keys_t, &values_t}) *piece = take_pairs(memory, all / 2);
    for (Half** piece : {&query, &dout, &query_t, &dout_t}) *piece = take_halves(memory, some);
    pairs = take_pairs(memory, some / 2);
    rounded = take_halves(memory, block);
    for (Pair** piece : {&probs, &dscores}) *piece = take_pairs(memory, block / 2);
    for (float** piece : {&scores, &dprobs}) *piece = take(memory, block);
    dquery = take(memory, some);
    for (float** piece : {&dkeys_t, &dvalues_t}) *piece = take(memory, all);
  }
};

std::size_t attention_backward_scratch_bf16(const AttentionShape& shape) {
  const Sizes sizes(shape, bf16_pad);
  return 4 * sizes.seq_pad * sizes.dim_pad +
         sizes.block * (7 * sizes.dim_pad + 7 * sizes.seq_pad) / 2;
}

// Packs the rows of a block as a left operand, and transposed.
void pack_block(const Slice<const bfloat16>& from, const Sizes& sizes, const Block& block,
                const BackwardScratch& scratch, Half* to, Half* transposed) {
  const std::size_t rows = padded(block.rows, sizes.pad);
  pack(from, sizes, block.rows, to);
  interleave(to, rows, sizes.dim_pad, scratch.pairs);
  transpose(scratch.pairs, rows / 2, sizes.dim_pad, reinterpret_cast<Pair*>(transposed));
}

void backward_block(const AttentionBackward& args, const Sizes& sizes, const Block& block,
                    const AttentionTask& task, std::size_t head, const BackwardScratch& scratch) {
  const std::size_t q_width = sizes.heads * sizes.dim;
  const std::size_t at = (task.row * sizes.seq + block.first) * q_width + head * sizes.dim;
  const std::size_t rows = padded(block.rows, sizes.pad), pad = sizes.dim_pad;
  pack_block({args.q.as<bfloat16>() + at, q_width}, sizes, block, scratch, scratch.query,
             scratch.query_t);
  pack_block({args.dout.as<bfloat16>() + at, q_width}, sizes, block, scratch, scratch.dout,
             scratch.dout_t);
  multiply(task.bf16, {scratch.query, pad, scratch.keys_t + block.low, sizes.seq_pad,
                       scratch.scores, block.span, rows, block.span, pad, false});
  multiply(task.bf16, {scratch.dout, pad, scratch.values_t + block.low, sizes.seq_pad,
                       scratch.dprobs, block.span, rows, block.span, pad, false});
  softmax_backward<bfloat16>(args, sizes, block, task.row, head, scratch.scores, scratch.dprobs);
  round_rows(scratch.scores, sizes, block.rows, block.span, scratch.rounded);
  interleave(scratch.rounded, rows, block.span, scratch.probs);
  round_rows(scratch.dprobs, sizes, block.rows, block.span, scratch.rounded);
  interleave(scratch.rounded, rows, block.span, scratch.dscores);
  multiply(task.bf16, {scratch.rounded, block.span, scratch.keys + block.low / 2 * pad, pad,
                       scratch.dquery, pad, rows, pad, block.span, false});
  multiply(task.bf16, {scratch.query_t, rows, scratch.dscores, block.span,
                       scratch.dkeys_t + block.low, sizes.seq_pad, pad, block.span, rows, true});
  multiply(task.bf16, {scratch.dout_t, rows, scratch.probs, block.span,
                       scratch.dvalues_t + block.low, sizes.seq_pad, pad, block.span, rows, true});
  unpack<bfloat16>(scratch.dquery, sizes, block.rows, sizes.scale,
                   {args.dq.as<bfloat16>() + at, q_width});
}

void attention_backward_bf16(const AttentionBackward& args, const AttentionTask& task) {
  const Sizes sizes(args.shape, bf16_pad, args.positions, task.row);
  const BackwardScratch scratch(task.scratch, sizes);
  const std::size_t all = sizes.seq_pad * sizes.dim_pad;
  const std::size_t kv_width = sizes.kv_heads * sizes.dim;
  const std::size_t kv_at = task.row * sizes.seq * kv_width + task.kv_head * sizes.dim;
  pack({args.v.as<bfloat16>() + kv_at, kv_width}, sizes, sizes.seq, scratch.rows);
  pack_columns(scratch.rows, sizes, scratch.values_t);
  pack({args.k.as<bfloat16>() + kv_at, kv_width}, sizes, sizes.seq, scratch.rows);
  pack_columns(scratch.rows, sizes, scratch.keys_t);
  interleave(scratch.rows, sizes.seq_pad, sizes.dim_pad, scratch.keys);
  std::fill_n(scratch.dkeys_t, all, 0.0F);
  std::fill_n(scratch.dvalues_t, all, 0.0F);
  for (std::size_t g = 0; g < sizes.group; ++g) {
    for (std::size_t first = 0; first < sizes.seq; first += sizes.block) {
      backward_block(args, sizes, block_at(sizes, first), task, task.kv_head * sizes.group + g,
                     scratch);
    }
  }
  // The packed keys are no longer needed, so their memory receives the gradients' rows.
  auto* gradient = reinterpret_cast<float*>(scratch.keys);
  const auto write = [&](const float* transposed, float factor, bfloat16* to) {
    transpose(transposed, sizes.dim_pad, sizes.seq_pad, gradient);
    unpack<bfloat16>(gradient, sizes, sizes.seq, factor, {to, kv_width});
  };
  write(scratch.dkeys_t, sizes.scale, args.dk.as<bfloat16>() + kv_at);
  write(scratch.dvalues_t, 1.0F, args.dv.as<bfloat16>() + kv_at);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace train::cpu {

ATOLL_DISPATCH(std::size_t, attention_forward_scratch_bf16, (const AttentionShape& shape), shape)
ATOLL_DISPATCH(std::size_t, attention_backward_scratch_bf16, (const AttentionShape& shape), shape)
ATOLL_DISPATCH(void, attention_forward_bf16,
               (const AttentionForward& args, const AttentionTask& task), args, task)
ATOLL_DISPATCH(void, attention_backward_bf16,
               (const AttentionBackward& args, const AttentionTask& task), args, task)

}  // namespace train::cpu
#endif
