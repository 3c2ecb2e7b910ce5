// Building blocks of the attention kernels: tiles in shared memory, their products, and visibility
// between tokens.
#pragma once

#include <cstdint>

#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda::tiles {

constexpr int side = 16;             // threads form a side x side square
constexpr int passing = 32;          // rows of a streamed tile
constexpr int met = passing / side;  // streamed rows per thread; thread tx has the rows tx + 16 j
static_assert(side * side == threads);

// Tiles for heads of up to 64 * groups elements. Wide heads use fewer rows, so that everything fits
// into the shared memory of sm_80.
template <int groups_>
struct Tiles {
  static constexpr int groups = groups_;
  static constexpr int columns = 64 * groups;
  static constexpr int stride = columns + 4;  // consecutive rows begin in different banks
  static constexpr int resident = groups <= 2 ? 64 : 32;
  // Rows per thread; thread ty has the rows ty * rows + i.
  static constexpr int rows = resident / side;
  static constexpr int resident_floats = resident * stride;
  static constexpr int passing_floats = passing * stride;
  static constexpr int weight_floats = resident * (passing + 1);

  // Shared memory of the kernels, in floats.
  static constexpr int forward_floats = resident_floats + 2 * passing_floats + weight_floats;
  static constexpr int queries_floats = 2 * resident_floats + 2 * passing_floats + weight_floats;
  static constexpr int keys_floats = queries_floats + weight_floats;
};

__device__ __forceinline__ int tx() { return static_cast<int>(threadIdx.x) % side; }
__device__ __forceinline__ int ty() { return static_cast<int>(threadIdx.x) / side; }

// One head of one sequence.
template <class T>
struct Head {
  T* first;    // address of the head's first element in token 0
  int stride;  // number of elements from one token to the next
  int tokens;
  int width;
  bool packs;  // rows can be read four elements at a time

  __device__ T* row(int token) const { return first + std::int64_t{token} * stride; }
};

// Loads a tile from token `first`. Elements outside the sequence or the head become 0.
template <class Tile, class T>
__device__ void load(float* tile, int rows, const Head<const T>& head, int first) {
  constexpr int fours = Tile::columns / 4;
  for (int i = static_cast<int>(threadIdx.x); i < rows * fours; i += threads) {
    const int row = i / fours, column = i % fours * 4;
    float4 to{0, 0, 0, 0};
    if (first + row < head.tokens && column < head.width) {
      const T* const from = head.row(first + row) + column;
      if (head.packs) {
        const auto pack = *reinterpret_cast<const Pack<T, 4>*>(from);
        to = {convert<float>(pack.values[0]), convert<float>(pack.values[1]),
              convert<float>(pack.values[2]), convert<float>(pack.values[3])};
      } else {
        const int rest = head.width - column;
        to.x = convert<float>(from[0]);
        if (rest > 1) to.y = convert<float>(from[1]);
        if (rest > 2) to.z = convert<float>(from[2]);
        if (rest > 3) to.w = convert<float>(from[3]);
      }
    }
    *reinterpret_cast<float4*>(tile + row * Tile::stride + column) = to;
  }
}

// This thread's dot products: dots[i][j] = row ty * rows + i of `left` and row tx + 16 j of
// `right`.
template <class Tile>
__device__ __forceinline__ void dot_rows(const float* left, const float* right,
                                         float (&dots)[Tile::rows][met]) {
  for (auto& row : dots) {
    for (float& dot : row) dot = 0;
  }
#pragma unroll 4
  for (int column = 0; column < Tile::columns; column += 4) {
    float4 theirs[met];
#pragma unroll
    for (int j = 0; j < met; ++j) {
      theirs[j] =
          *reinterpret_cast<const float4*>(right + (tx() + side * j) * Tile::stride + column);
    }
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) {
      const auto mine =
          *reinterpret_cast<const float4*>(left + (ty() * Tile::rows + i) * Tile::stride + column);
#pragma unroll
      for (int j = 0; j < met; ++j) {
        dots[i][j] += mine.x * theirs[j].x;
        dots[i][j] += mine.y * theirs[j].y;
        dots[i][j] += mine.z * theirs[j].z;
        dots[i][j] += mine.w * theirs[j].w;
      }
    }
  }
}

// This thread's sums: its rows, and 4 columns of every 64.
template <class Tile>
struct Sums {
  float values[Tile::rows][4 * Tile::groups] = {};

  // Adds weights x tile. `weights` has passing + 1 floats for each row that stays in the block;
  // `tile` has Tile::stride floats for each of the `passing` streamed rows.
  __device__ __forceinline__ void add(const float* weights, const float* tile) {
#pragma unroll 2
    for (int k = 0; k < passing; ++k) {
      float weight[Tile::rows];
#pragma unroll
      for (int i = 0; i < Tile::rows; ++i) {
        weight[i] = weights[(ty() * Tile::rows + i) * (passing + 1) + k];
      }
#pragma unroll
      for (int g = 0; g < Tile::groups; ++g) {
        const auto row =
            *reinterpret_cast<const float4*>(tile + k * Tile::stride + 4 * tx() + 64 * g);
#pragma unroll
        for (int i = 0; i < Tile::rows; ++i) {
          values[i][4 * g] += weight[i] * row.x;
          values[i][4 * g + 1] += weight[i] * row.y;
          values[i][4 * g + 2] += weight[i] * row.z;
          values[i][4 * g + 3] += weight[i] * row.w;
        }
      }
    }
  }

  template <class T>
  __device__ void store(const Head<T>& head, int first) const {
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) {
      const int token = first + ty() * Tile::rows + i;
      if (token >= head.tokens) continue;
#pragma unroll
      for (int c = 0; c < 4 * Tile::groups; ++c) {
        const int column = 4 * tx() + 64 * (c / 4) + c % 4;
        if (column < head.width) head.row(token)[column] = convert<T>(values[i][c]);
      }
    }
  }
};

// Reduces over the 16 threads that share rows; all of them receive the result.
template <class Op>
__device__ __forceinline__ float over_row(float value) {
#pragma unroll
  for (int step = side / 2; step > 0; step /= 2) {
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// The kernels' part of AttentionShape, and visibility between tokens.
struct Shape {
  int seq, heads, kv_heads, width, window;
  bool packs;
  float scale;
  const std::int32_t* positions;  // positions of all tokens; null if each row is one document
  int head_step, query_step;      // strides of lse between heads and between queries

  // Returns the shape of a single row, with the positions of that row.
  __device__ Shape of_row(int row) const {
    Shape shape = *this;
    if (positions != nullptr) shape.positions += std::int64_t{row} * seq;
    return shape;
  }
  // Index of a query and head in lse.
  __device__ std::int64_t statistic(int row, int head, int query) const {
    return std::int64_t{row} * heads * seq + head * head_step + query * query_step;
  }
  // First token of a query's document.
  __device__ int start(int query) const {
    return positions == nullptr ? 0 : max(0, query - positions[query]);
  }
  __device__ bool sees(int query, int key) const {
    return key <= query && (window == 0 || key > query - window) && query < seq &&
           key >= start(query);
  }
  // Returns the first key that a query sees. It never decreases from one query to the next.
  __device__ int first_key(int query) const {
    return window == 0 ? start(query) : max(start(query), query - window + 1);
  }
  // One past the last query that sees a key.
  __device__ int end_query(int key) const {
    return window == 0 || window >= seq - key ? seq : key + window;
  }
  template <class T>
  __device__ Head<T> head(T* data, int row, int of, int which) const {
    const std::int64_t stride = std::int64_t{of} * width;
    return {data + std::int64_t{row} * seq * stride + std::int64_t{which} * width,
            static_cast<int>(stride), seq, width, packs};
  }
};

// The tile of a block in a grid of (tiles, heads, rows). Tiles with the most work come first.
struct Place {
  int tile, head, row;
  __device__ static Place last_first() {
    return {static_cast<int>(gridDim.x - 1 - blockIdx.x), static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.z)};
  }
  __device__ static Place first_first() {
    return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.z)};
  }
};

}  // namespace train::cuda::tiles
