// Products of small f32 matrices that fit the caches, for attention. Highway's foreach_target
// includes this file once per target, hence no #pragma once.
#if defined(TRAIN_MODEL_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRAIN_MODEL_CPU_TILE_INL_H
#undef TRAIN_MODEL_CPU_TILE_INL_H
#else
#define TRAIN_MODEL_CPU_TILE_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

// Rows of B and C are padded to a multiple of this many floats, so that no vector needs a mask.
inline constexpr std::size_t tile_pad = 16;

constexpr std::size_t padded(std::size_t n) { return (n + tile_pad - 1) / tile_pad * tile_pad; }

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

// Vectors of accumulators per row. A block keeps 16 of AVX-512's 32 registers, or 8 of 16.
#if HWY_TARGET <= HWY_AVX3
inline constexpr std::size_t wide_vectors = 4;
#else
inline constexpr std::size_t wide_vectors = 2;
#endif

template <std::size_t rows, std::size_t vectors, bool accumulate>
HWY_INLINE void tile_block(const Tile& tile, std::size_t i, std::size_t j) {
  using D = hwy::HWY_NAMESPACE::ScalableTag<float>;
  namespace hn = hwy::HWY_NAMESPACE;
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
  const std::size_t lanes = hwy::HWY_NAMESPACE::Lanes(hwy::HWY_NAMESPACE::ScalableTag<float>());
  std::size_t j = 0;
  for (; j + wide_vectors * lanes <= tile.n; j += wide_vectors * lanes) {
    tile_columns<wide_vectors, accumulate>(tile, j);
  }
  if constexpr (wide_vectors > 2) {
    for (; j + 2 * lanes <= tile.n; j += 2 * lanes) tile_columns<2, accumulate>(tile, j);
  }
  for (; j < tile.n; j += lanes) tile_columns<1, accumulate>(tile, j);
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#endif
