// Causal attention of one sequence and one key-value head in f32, in blocks of query rows.
//
// Keys and values are packed once as f32, transposed where a product needs it. Each block of
// queries visits only the keys that its rows see, so masked keys cost nothing, and only one block
// of scores exists at a time. Backward recomputes the scores from log-sum-exp:
//   S = Q K^T    P = exp(scale S - lse)    dP = dO V^T    dS = P (dP - sum(dO O))
//   dQ = scale dS K     dK += scale dS^T Q     dV += P^T dO
// One thread computes all query heads of a key-value head, which fixes the order of the sums.
#include <algorithm>

#include "model/cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/cpu/attention-inl.h"
#include "model/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {
namespace {  // unnamed, because attention_bf16.cpp has functions of the same names

// Products of small f32 matrices that fit the caches.

// Rows of B and C are padded to a multiple of this many floats, so that no vector needs a mask.
inline constexpr std::size_t tile_pad = 16;

// C [m, n] = A [m, k] B [k, n], or C += A B. Two strides address A, so it may be transposed. n is a
// multiple of tile_pad.
struct Tile {
  const float* a;
  std::size_t a_row, a_column;
  const float* b;
  std::size_t b_row;
  float* c;
  std::size_t c_row;
  std::size_t m, n, k;
};

// Vectors of accumulators per row. With them, a block occupies 16 of the 32 registers of AVX-512,
// and 8 of the 16 of AVX2.
#if HWY_TARGET <= HWY_AVX3
inline constexpr std::size_t wide_vectors = 4;
#else
inline constexpr std::size_t wide_vectors = 2;
#endif

template <std::size_t rows, std::size_t vectors, bool accumulate>
HWY_INLINE void tile_block(const Tile& tile, std::size_t i, std::size_t j) {
  using D = hn::ScalableTag<float>;
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[rows][vectors];
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      if constexpr (accumulate) {
        sum[r][v] = hn::LoadU(d, tile.c + (i + r) * tile.c_row + j + v * lanes);
      } else {
        sum[r][v] = hn::Zero(d);
      }
    }
  }
  const float* a = tile.a + i * tile.a_row;
  const float* b = tile.b + j;
  for (std::size_t k = 0; k < tile.k; ++k, a += tile.a_column, b += tile.b_row) {
    hn::Vec<D> right[vectors];
    for (std::size_t v = 0; v < vectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto left = hn::Set(d, a[r * tile.a_row]);
      for (std::size_t v = 0; v < vectors; ++v) {
        sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      hn::StoreU(sum[r][v], d, tile.c + (i + r) * tile.c_row + j + v * lanes);
    }
  }
}

// Computes all rows of the columns [j, j + vectors * lanes).
template <std::size_t vectors, bool accumulate>
HWY_INLINE void tile_columns(const Tile& tile, std::size_t j) {
  constexpr std::size_t most = vectors == wide_vectors ? 4 : 8;
  std::size_t i = 0;
  for (; i + most <= tile.m; i += most) tile_block<most, vectors, accumulate>(tile, i, j);
  for (; i + 2 <= tile.m; i += 2) tile_block<2, vectors, accumulate>(tile, i, j);
  for (; i < tile.m; ++i) tile_block<1, vectors, accumulate>(tile, i, j);
}

template <bool accumulate>
HWY_INLINE void tile_product(const Tile& tile) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  std::size_t j = 0;
  for (; j + wide_vectors * lanes <= tile.n; j += wide_vectors * lanes) {
    tile_columns<wide_vectors, accumulate>(tile, j);
  }
  if constexpr (wide_vectors > 2) {
    for (; j + 2 * lanes <= tile.n; j += 2 * lanes) tile_columns<2, accumulate>(tile, j);
  }
  for (; j < tile.n; j += lanes) tile_columns<1, accumulate>(tile, j);
}

// to[row][dim_pad] = from, with zero padding.
template <class T>
void pack(const Slice<const T>& from, const Sizes& sizes, std::size_t rows, float* to) {
  for (std::size_t row = 0; row < rows; ++row) {
    const T* source = from.data + row * from.stride;
    float* target = to + row * sizes.dim_pad;
    for_lanes(0, sizes.dim,
              [&](auto d, std::size_t i) HWY_ATTR { store(d, load(d, source + i), target + i); });
    std::fill(target + sizes.dim, target + sizes.dim_pad, 0.0F);
  }
}

// Transposes [seq_pad][dim_pad] to [dim][seq_pad], in squares that fit the first-level cache.
void transpose(const float* from, const Sizes& sizes, float* to) {
  for (std::size_t row = 0; row < sizes.seq_pad; row += tile_pad) {
    for (std::size_t i = 0; i < sizes.dim; ++i) {
      for (std::size_t r = 0; r < tile_pad; ++r) {
        to[i * sizes.seq_pad + row + r] = from[(row + r) * sizes.dim_pad + i];
      }
    }
  }
}

template <class T>
void pack_keys(const Slice<const T>& from, const Sizes& sizes, float* rows, float* columns) {
  pack(from, sizes, sizes.seq, rows);
  std::fill(rows + sizes.seq * sizes.dim_pad, rows + sizes.seq_pad * sizes.dim_pad, 0.0F);
  if (columns != nullptr) transpose(rows, sizes, columns);
}

template <class T>
void attention_forward_typed(const AttentionForward& args, const AttentionTask& task) {
  const Sizes sizes(args.shape, tile_pad, args.positions, task.row);
  const std::size_t q_width = sizes.heads * sizes.dim;
  const std::size_t kv_width = sizes.kv_heads * sizes.dim;
  float* memory = task.scratch;
  float* values = take(memory, sizes.seq_pad * sizes.dim_pad);
  float* keys = take(memory, sizes.seq_pad * sizes.dim_pad);
  float* query = take(memory, sizes.block * sizes.dim_pad);
  float* out = take(memory, sizes.block * sizes.dim_pad);
  float* scores = take(memory, sizes.block * sizes.seq_pad);
  const std::size_t kv_at = task.row * sizes.seq * kv_width + task.kv_head * sizes.dim;
  // The first call uses `values` as temporary memory to transpose the keys. The second call packs
  // the values.
  pack_keys<T>({args.k.as<T>() + kv_at, kv_width}, sizes, values, keys);
  pack_keys<T>({args.v.as<T>() + kv_at, kv_width}, sizes, values, nullptr);
  for (std::size_t g = 0; g < sizes.group; ++g) {
    const std::size_t head = task.kv_head * sizes.group + g;
    const Statistics lse = statistics(sizes, args.lse, task.row, head);
    for (std::size_t first = 0; first < sizes.seq; first += sizes.block) {
      const Block block = block_at(sizes, first);
      const std::size_t at = (task.row * sizes.seq + first) * q_width + head * sizes.dim;
      pack<T>({args.q.as<T>() + at, q_width}, sizes, block.rows, query);
      tile_product<false>({query, sizes.dim_pad, 1, keys + block.low, sizes.seq_pad, scores,
                           block.span, block.rows, block.span, sizes.dim});
      float sums[64];
      for (std::size_t r = 0; r < block.rows; ++r) {
        lse[first + r] = softmax_row(scores + r * block.span, block.span, sizes.scale,
                                     Visible(sizes, first + r, block.low), &sums[r]);
      }
      tile_product<false>({scores, block.span, 1, values + block.low * sizes.dim_pad, sizes.dim_pad,
                           out, sizes.dim_pad, block.rows, sizes.dim_pad, block.span});
      for (std::size_t r = 0; r < block.rows; ++r) {
        unpack<T>(out + r * sizes.dim_pad, sizes, 1, 1.0F / sums[r],
                  {args.out.as<T>() + at + r * q_width, q_width});
      }
    }
  }
}

void attention_forward(const AttentionForward& args, const AttentionTask& task) {
  with_type(args.q.dtype, [&](auto zero) { attention_forward_typed<decltype(zero)>(args, task); });
}

// Scratch memory of one backward task.
struct BackwardScratch {
  float *keys, *keys_t, *values_t, *dkeys, *dvalues, *query, *dout, *dquery, *scores, *dprobs;
  BackwardScratch(float* memory, const Sizes& sizes) {
    for (float** piece : {&keys, &keys_t, &values_t, &dkeys, &dvalues}) {
      *piece = take(memory, sizes.seq_pad * sizes.dim_pad);
    }
    for (float** piece : {&query, &dout, &dquery})
      *piece = take(memory, sizes.block * sizes.dim_pad);
    for (float** piece : {&scores, &dprobs}) *piece = take(memory, sizes.block * sizes.seq_pad);
  }
};

template <class T>
void backward_block(const AttentionBackward& args, const Sizes& sizes, const Block& block,
                    std::size_t row, std::size_t head, const BackwardScratch& scratch) {
  const std::size_t q_width = sizes.heads * sizes.dim;
  const std::size_t at = (row * sizes.seq + block.first) * q_width + head * sizes.dim;
  pack<T>({args.q.as<T>() + at, q_width}, sizes, block.rows, scratch.query);
  pack<T>({args.dout.as<T>() + at, q_width}, sizes, block.rows, scratch.dout);
  const std::size_t pad = sizes.dim_pad;
  tile_product<false>({scratch.query, pad, 1, scratch.keys_t + block.low, sizes.seq_pad,
                       scratch.scores, block.span, block.rows, block.span, sizes.dim});
  tile_product<false>({scratch.dout, pad, 1, scratch.values_t + block.low, sizes.seq_pad,
                       scratch.dprobs, block.span, block.rows, block.span, sizes.dim});
  softmax_backward<T>(args, sizes, block, row, head, scratch.scores, scratch.dprobs);
  tile_product<false>({scratch.dprobs, block.span, 1, scratch.keys + block.low * pad, pad,
                       scratch.dquery, pad, block.rows, pad, block.span});
  tile_product<true>({scratch.dprobs, 1, block.span, scratch.query, pad,
                      scratch.dkeys + block.low * pad, pad, block.span, pad, block.rows});
  tile_product<true>({scratch.scores, 1, block.span, scratch.dout, pad,
                      scratch.dvalues + block.low * pad, pad, block.span, pad, block.rows});
  unpack<T>(scratch.dquery, sizes, block.rows, sizes.scale, {args.dq.as<T>() + at, q_width});
}

template <class T>
void attention_backward_typed(const AttentionBackward& args, const AttentionTask& task) {
  const Sizes sizes(args.shape, tile_pad, args.positions, task.row);
  const BackwardScratch scratch(task.scratch, sizes);
  const std::size_t kv_width = sizes.kv_heads * sizes.dim;
  const std::size_t kv_at = task.row * sizes.seq * kv_width + task.kv_head * sizes.dim;
  pack_keys<T>({args.v.as<T>() + kv_at, kv_width}, sizes, scratch.keys, scratch.values_t);
  pack_keys<T>({args.k.as<T>() + kv_at, kv_width}, sizes, scratch.keys, scratch.keys_t);
  std::fill_n(scratch.dkeys, sizes.seq_pad * sizes.dim_pad, 0.0F);
  std::fill_n(scratch.dvalues, sizes.seq_pad * sizes.dim_pad, 0.0F);
  for (std::size_t g = 0; g < sizes.group; ++g) {
    for (std::size_t first = 0; first < sizes.seq; first += sizes.block) {
      backward_block<T>(args, sizes, block_at(sizes, first), task.row,
                        task.kv_head * sizes.group + g, scratch);
    }
  }
  unpack<T>(scratch.dkeys, sizes, sizes.seq, sizes.scale, {args.dk.as<T>() + kv_at, kv_width});
  unpack<T>(scratch.dvalues, sizes, sizes.seq, 1.0F, {args.dv.as<T>() + kv_at, kv_width});
}

void attention_backward(const AttentionBackward& args, const AttentionTask& task) {
  with_type(args.q.dtype, [&](auto zero) { attention_backward_typed<decltype(zero)>(args, task); });
}

std::size_t attention_forward_scratch(const AttentionShape& shape) {
  const Sizes sizes(shape, tile_pad);
  return 2 * sizes.seq_pad * sizes.dim_pad + sizes.block * (2 * sizes.dim_pad + sizes.seq_pad);
}

std::size_t attention_backward_scratch(const AttentionShape& shape) {
  const Sizes sizes(shape, tile_pad);
  return 5 * sizes.seq_pad * sizes.dim_pad + sizes.block * (3 * sizes.dim_pad + 2 * sizes.seq_pad);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace train::cpu {

ATOLL_DISPATCH(std::size_t, attention_forward_scratch, (const AttentionShape& shape), shape)
ATOLL_DISPATCH(std::size_t, attention_backward_scratch, (const AttentionShape& shape), shape)
ATOLL_DISPATCH(void, attention_forward, (const AttentionForward& args, const AttentionTask& task),
               args, task)
ATOLL_DISPATCH(void, attention_backward, (const AttentionBackward& args, const AttentionTask& task),
               args, task)

}  // namespace train::cpu
#endif
