// Attention in f32 arithmetic, also for bf16 tensors that cuDNN does not support. No matrix of
// scores is stored; backward recomputes them from log-sum-exp, as on the CPU:
//   P = exp(S - lse)    dP = dO V^T    dS = scale P (dP - sum(dO O))
//   dQ = dS K           dK = dS^T Q    dV = P^T dO
// Three kernels share one structure. A block of 16 x 16 threads keeps a tile of rows (queries; keys
// in the last kernel) in shared memory and streams tiles of the other side past it. Dot products of
// both tiles give a tile of weights; weights times the streamed tile are added to sums in
// registers. A thread owns a few rows and the columns 4 tx + 64 g of them. No two blocks add to the
// same sum, so all sums have a fixed order.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "model/cuda/attention_tiles.cuh"
#include "model/cuda/kernels.hpp"

namespace train::cuda {
namespace {

using namespace tiles;

// Online softmax of a thread's rows over the keys seen so far: the highest score, and the sum of
// weights exp(score - highest).
template <class Tile>
struct Softmax {
  float maximum[Tile::rows], total[Tile::rows];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) maximum[i] = -INFINITY, total[i] = 0;
  }

  // Turns the scores of queries from `first` and keys from `key` into weights, and rescales earlier
  // sums to the new maximum.
  __device__ __forceinline__ void add(const Shape& shape, int first, int key,
                                      float (&scores)[Tile::rows][met], float* weights,
                                      Sums<Tile>& sums) {
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) {
      const int row = ty() * Tile::rows + i;
      float highest = maximum[i];
#pragma unroll
      for (int j = 0; j < met; ++j) {
        const bool seen = shape.sees(first + row, key + tx() + side * j);
        scores[i][j] = seen ? scores[i][j] * shape.scale : -INFINITY;
        highest = fmaxf(highest, scores[i][j]);
      }
      highest = over_row<Maximum>(highest);
      const float base = highest == -INFINITY ? 0.0f : highest;  // 0 until a key is visible
      const float factor = expf(maximum[i] - base);
      maximum[i] = highest;
      float added = 0;
#pragma unroll
      for (int j = 0; j < met; ++j) {
        const float weight = expf(scores[i][j] - base);
        weights[row * (passing + 1) + tx() + side * j] = weight;
        added += weight;
      }
      total[i] = total[i] * factor + over_row<Sum>(added);
#pragma unroll
      for (float& value : sums.values[i]) value *= factor;
    }
  }
};

template <class T, class Tile>
__global__ void __launch_bounds__(threads, Tile::groups <= 2 ? 2 : 1)
    forward(Shape all, const T* q, const T* k, const T* v, T* out, float* lse) {
  float* const queries = reinterpret_cast<float*>(dynamic_shared);
  float* const keys = queries + Tile::resident_floats;
  float* const values = keys + Tile::passing_floats;
  float* const weights = values + Tile::passing_floats;
  const Place at = Place::last_first();
  const Shape shape = all.of_row(at.row);
  const int first = at.tile * Tile::resident;
  const int last = min(first + Tile::resident, shape.seq) - 1;
  const int kv_head = at.head / (shape.heads / shape.kv_heads);
  load<Tile>(queries, Tile::resident, shape.head(q, at.row, shape.heads, at.head), first);
  const auto key_head = shape.head(k, at.row, shape.kv_heads, kv_head);
  const auto value_head = shape.head(v, at.row, shape.kv_heads, kv_head);
  Sums<Tile> sums;
  Softmax<Tile> softmax;
  for (int key = shape.first_key(first) / passing * passing; key <= last; key += passing) {
    __syncthreads();
    load<Tile>(keys, passing, key_head, key);
    load<Tile>(values, passing, value_head, key);
    __syncthreads();
    float scores[Tile::rows][met];
    dot_rows<Tile>(queries, keys, scores);
    softmax.add(shape, first, key, scores, weights, sums);
    __syncwarp();  // the threads of a row belong to one warp
    sums.add(weights, values);
  }
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    const int token = first + ty() * Tile::rows + i;
#pragma unroll
    for (float& value : sums.values[i]) value /= softmax.total[i];
    if (token >= shape.seq || tx() != 0) continue;
    lse[shape.statistic(at.row, at.head, token)] = softmax.maximum[i] + logf(softmax.total[i]);
  }
  sums.store(shape.head(out, at.row, shape.heads, at.head), first);
}

// deltas [rows, heads, seq] = sum(dO O); one warp per query and head.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_products(Shape shape, const T* out, const T* dout, float* deltas, std::int64_t count) {
  const std::int64_t item = (std::int64_t{blockIdx.x} * threads + threadIdx.x) / 32;
  if (item >= count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = item / shape.heads;
  const int head = static_cast<int>(item % shape.heads);
  const std::int64_t first = item * shape.width;
  float sum = 0;
  for (int c = lane; c < shape.width; c += 32) {
    sum += convert<float>(out[first + c]) * convert<float>(dout[first + c]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane != 0) return;
  const std::int64_t row = token / shape.seq, query = token % shape.seq;
  deltas[(row * shape.heads + head) * shape.seq + query] = sum;
}

// Log-sum-exp and sum(dO O) of the queries of one head.
struct Statistics {
  const float *lse, *deltas;
};

template <class T, class Tile>
__global__ void __launch_bounds__(threads, 1)
    backward_queries(Shape all, const T* q, const T* k, const T* v, const T* dout,
                     Statistics statistics, T* dq) {
  float* const queries = reinterpret_cast<float*>(dynamic_shared);
  float* const douts = queries + Tile::resident_floats;
  float* const keys = douts + Tile::resident_floats;
  float* const values = keys + Tile::passing_floats;
  float* const weights = values + Tile::passing_floats;
  const Place at = Place::last_first();
  const Shape shape = all.of_row(at.row);
  const int first = at.tile * Tile::resident;
  const int last = min(first + Tile::resident, shape.seq) - 1;
  const int kv_head = at.head / (shape.heads / shape.kv_heads);
  load<Tile>(queries, Tile::resident, shape.head(q, at.row, shape.heads, at.head), first);
  load<Tile>(douts, Tile::resident, shape.head(dout, at.row, shape.heads, at.head), first);
  const auto key_head = shape.head(k, at.row, shape.kv_heads, kv_head);
  const auto value_head = shape.head(v, at.row, shape.kv_heads, kv_head);
  const std::int64_t of_head = (std::int64_t{at.row} * shape.heads + at.head) * shape.seq;
  float lse[Tile::rows], delta[Tile::rows];
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    const int query = min(first + ty() * Tile::rows + i, shape.seq - 1);
    lse[i] = statistics.lse[shape.statistic(at.row, at.head, query)];
    delta[i] = statistics.deltas[of_head + query];
  }
  Sums<Tile> sums;
  for (int key = shape.first_key(first) / passing * passing; key <= last; key += passing) {
    __syncthreads();
    load<Tile>(keys, passing, key_head, key);
    load<Tile>(values, passing, value_head, key);
    __syncthreads();
    float scores[Tile::rows][met], dweights[Tile::rows][met];
    dot_rows<Tile>(queries, keys, scores);
    dot_rows<Tile>(douts, values, dweights);
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) {
      const int row = ty() * Tile::rows + i;
#pragma unroll
      for (int j = 0; j < met; ++j) {
        const bool seen = shape.sees(first + row, key + tx() + side * j);
        const float weight = seen ? expf(scores[i][j] * shape.scale - lse[i]) : 0.0f;
        weights[row * (passing + 1) + tx() + side * j] =
            shape.scale * weight * (dweights[i][j] - delta[i]);
      }
    }
    __syncwarp();
    sums.add(weights, keys);
  }
  sums.store(shape.head(dq, at.row, shape.heads, at.head), first);
}

// Keeps keys and streams the queries of all heads that share them. Its shared memory admits only
// one block per multiprocessor, so that block may use all registers.
template <class T, class Tile>
__global__ void __launch_bounds__(threads, 1)
    backward_keys(Shape all, const T* q, const T* k, const T* v, const T* dout,
                  Statistics statistics, T* dk, T* dv) {
  float* const keys = reinterpret_cast<float*>(dynamic_shared);
  float* const values = keys + Tile::resident_floats;
  float* const queries = values + Tile::resident_floats;
  float* const douts = queries + Tile::passing_floats;
  float* const weights = douts + Tile::passing_floats;
  float* const dscores = weights + Tile::weight_floats;
  const Place at = Place::first_first();
  const Shape shape = all.of_row(at.row);
  const int first = at.tile * Tile::resident;
  const int last = min(first + Tile::resident, shape.seq) - 1;
  const int group = shape.heads / shape.kv_heads;
  load<Tile>(keys, Tile::resident, shape.head(k, at.row, shape.kv_heads, at.head), first);
  load<Tile>(values, Tile::resident, shape.head(v, at.row, shape.kv_heads, at.head), first);
  Sums<Tile> dkeys, dvalues;
  for (int head = at.head * group; head < (at.head + 1) * group; ++head) {
    const auto query_head = shape.head(q, at.row, shape.heads, head);
    const auto dout_head = shape.head(dout, at.row, shape.heads, head);
    const std::int64_t of_head = (std::int64_t{at.row} * shape.heads + head) * shape.seq;
    for (int query = first / passing * passing; query < shape.end_query(last); query += passing) {
      if (shape.start(query) > last) break;  // later documents do not see these keys
      __syncthreads();
      load<Tile>(queries, passing, query_head, query);
      load<Tile>(douts, passing, dout_head, query);
      __syncthreads();
      float scores[Tile::rows][met], dweights[Tile::rows][met];
      dot_rows<Tile>(keys, queries, scores);
      dot_rows<Tile>(values, douts, dweights);
#pragma unroll
      for (int j = 0; j < met; ++j) {
        const int column = tx() + side * j;
        const int known = min(query + column, shape.seq - 1);
        const float lse = statistics.lse[shape.statistic(at.row, head, known)];
        const float delta = statistics.deltas[of_head + known];
#pragma unroll
        for (int i = 0; i < Tile::rows; ++i) {
          const int row = ty() * Tile::rows + i;
          const bool seen = shape.sees(query + column, first + row);
          const float weight = seen ? expf(scores[i][j] * shape.scale - lse) : 0.0f;
          weights[row * (passing + 1) + column] = weight;
          dscores[row * (passing + 1) + column] = shape.scale * weight * (dweights[i][j] - delta);
        }
      }
      __syncwarp();
      dvalues.add(weights, douts);
      dkeys.add(dscores, queries);
    }
  }
  dkeys.store(shape.head(dk, at.row, shape.kv_heads, at.head), first);
  dvalues.store(shape.head(dv, at.row, shape.kv_heads, at.head), first);
}

Shape kernel_shape(const AttentionShape& shape, bool packs, atoll::ConstView positions) {
  const bool packed = positions.count != 0;
  const auto seq = static_cast<int>(shape.seq), heads = static_cast<int>(shape.heads);
  return {.seq = seq,
          .heads = heads,
          .kv_heads = static_cast<int>(shape.kv_heads),
          .width = static_cast<int>(shape.head_dim),
          .window = static_cast<int>(shape.window),
          .packs = packs,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
          .positions = packed ? positions.as<std::int32_t>() : nullptr,
          .head_step = packed ? 1 : seq,
          .query_step = packed ? heads : 1};
}

// Launches a kernel whose shared memory exceeds the default limit.
template <class... Parameters, class... Arguments>
void start_large(std::string_view name, void (*kernel)(Parameters...), dim3 blocks,
                 std::size_t floats, cudaStream_t stream, const Arguments&... arguments) {
  const std::size_t bytes = floats * sizeof(float);
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        name);
  start(name, kernel, {blocks, stream, bytes}, arguments...);
}

template <class Tile>
dim3 grid_of(const AttentionShape& shape, std::int64_t heads) {
  return {static_cast<unsigned>((shape.seq + Tile::resident - 1) / Tile::resident),
          static_cast<unsigned>(heads), static_cast<unsigned>(shape.rows)};
}

template <class T, class... Views>
bool in_fours(const AttentionShape& shape, const Views&... views) {
  return shape.head_dim % 4 == 0 && (is_aligned(views.data, 4 * sizeof(T)) && ...);
}

// Calls body.operator()<T, Tile>() for the dtype and head size.
template <class Body>
void with_tiles(const AttentionShape& shape, atoll::DType dtype, const Body& body) {
  if (shape.head_dim > most_head_dim) {
    throw atoll::Error(atoll::ErrorCode::internal, "attention: the heads are too wide");
  }
  with_compute_type(dtype, [&]<class T>(Type<T>) {
    if (shape.head_dim <= 64) return body.template operator()<T, Tiles<1>>();
    if (shape.head_dim <= 128) return body.template operator()<T, Tiles<2>>();
    body.template operator()<T, Tiles<4>>();
  });
}

}  // namespace

void attention_forward(cudaStream_t stream, const AttentionForward& args) {
  with_tiles(args.shape, args.q.dtype, [&]<class T, class Tile>() {
    const Shape shape =
        kernel_shape(args.shape, in_fours<T>(args.shape, args.q, args.k, args.v), args.positions);
    start_large("attention_forward", forward<T, Tile>, grid_of<Tile>(args.shape, args.shape.heads),
                Tile::forward_floats, stream, shape, pointer<T>(args.q), pointer<T>(args.k),
                pointer<T>(args.v), pointer<T>(args.out), args.lse.as<float>());
  });
}

std::size_t attention_scratch(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.rows * shape.heads * shape.seq);
}

std::size_t attention_shared_bytes() {
  constexpr int most =
      std::max({Tiles<1>::keys_floats, Tiles<2>::keys_floats, Tiles<4>::keys_floats});
  return std::size_t{most} * sizeof(float);
}

void attention_backward(cudaStream_t stream, const AttentionBackward& args, float* scratch) {
  with_tiles(args.shape, args.q.dtype, [&]<class T, class Tile>() {
    const Shape shape = kernel_shape(
        args.shape, in_fours<T>(args.shape, args.q, args.k, args.v, args.dout), args.positions);
    const T *const q = pointer<T>(args.q), *const k = pointer<T>(args.k);
    const T *const v = pointer<T>(args.v), *const dout = pointer<T>(args.dout);
    const auto count = static_cast<std::int64_t>(attention_scratch(args.shape));
    const Statistics statistics{args.lse.as<float>(), scratch};
    start("attention_backward", sum_products<T>,
          {static_cast<unsigned>((count + warps - 1) / warps), stream}, shape, pointer<T>(args.out),
          dout, scratch, count);
    start_large("attention_backward", backward_queries<T, Tile>,
                grid_of<Tile>(args.shape, args.shape.heads), Tile::queries_floats, stream, shape, q,
                k, v, dout, statistics, pointer<T>(args.dq));
    start_large("attention_backward", backward_keys<T, Tile>,
                grid_of<Tile>(args.shape, args.shape.kv_heads), Tile::keys_floats, stream, shape, q,
                k, v, dout, statistics, pointer<T>(args.dk), pointer<T>(args.dv));
  });
}

}  // namespace train::cuda
