// RMSNorm with one block of threads per row, which is read once.
#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {

bool is_aligned(const RmsNormForward& args) { return all_aligned(args.x, args.weight, args.y); }

bool is_aligned(const RmsNormBackward& args) {
  return all_aligned(args.x, args.weight, args.dy, args.dx);
}

std::int64_t norm_width_limit(std::int64_t width, atoll::DType dtype, bool aligned) {
  const auto pack = 16 / static_cast<std::int64_t>(size_of(dtype));
  return aligned && width % pack == 0 ? most_norm_width : most_norm_width / 2;
}

namespace {

template <class T, int n, int held>
__global__ void __launch_bounds__(threads)
    forward(const T* x, const T* weight, T* y, float* inverse, int width, float eps) {
  __shared__ float shared[warps];
  const int packs = width / n;
  const std::int64_t first = std::int64_t{blockIdx.x} * width;
  Row<T, n, held> row, scale;
  row.load(x + first, packs);
  scale.load(weight, packs);
  float squares = 0;
  row.each(packs, [&](int k, int e, int) { squares += row.at(k, e) * row.at(k, e); });
  squares = over_block<Sum>(squares, shared);
  const float r = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
  if (threadIdx.x == 0) inverse[blockIdx.x] = r;
  row.each(packs, [&](int k, int e, int) { row.set(k, e, row.at(k, e) * r * scale.at(k, e)); });
  row.store(y + first, packs);
}

// Rows whose weight gradients one block sums.
constexpr int rows_of_block = 16;

// With r = 1 / rms and g = dy * weight: dx = r g - x r^3 mean(g x); dweight = sum of dy x r.
template <class T, int n, int held, bool accumulate>
__global__ void __launch_bounds__(threads)
    backward(const T* x, const T* weight, const T* dy, const float* inverse, T* dx, float* partials,
             int width, std::int64_t tokens) {
  __shared__ float shared[warps];
  const int packs = width / n;
  Row<T, n, held> scale;
  scale.load(weight, packs);
  float dweight[held][n] = {};
  // Load the next row while summing this one, if registers allow.
  constexpr bool ahead = held * n * sizeof(T) <= 32;
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_of_block;
  const std::int64_t end = begin + rows_of_block < tokens ? begin + rows_of_block : tokens;
  Row<T, n, held> row, gradient, next_row, next_gradient;
  row.load(x + begin * width, packs);
  gradient.load(dy + begin * width, packs);
  for (std::int64_t token = begin; token < end; ++token) {
    Row<T, n, held> result;
    const std::int64_t next = token + 1 < end ? token + 1 : token;
    if constexpr (ahead) {
      next_row.load(x + next * width, packs);
      next_gradient.load(dy + next * width, packs);
    }
    if constexpr (accumulate) result.load(dx + token * width, packs);
    const float r = inverse[token];
    float dot = 0;
    row.each(packs,
             [&](int k, int e, int) { dot += gradient.at(k, e) * scale.at(k, e) * row.at(k, e); });
    dot = over_block<Sum>(dot, shared);
    const float along = -r * r * r * (dot / static_cast<float>(width));
    row.each(packs, [&](int k, int e, int) {
      const float value = row.at(k, e), dvalue = gradient.at(k, e);
      dweight[k][e] += dvalue * (value * r);
      float to = dvalue * scale.at(k, e) * r + value * along;
      if constexpr (accumulate) to += result.at(k, e);
      result.set(k, e, to);
    });
    if constexpr (ahead) {
      row = next_row;
      gradient = next_gradient;
    } else {
      row.load(x + next * width, packs);
      gradient.load(dy + next * width, packs);
    }
    result.store(dx + token * width, packs);
  }
  if (partials == nullptr) return;
  float* const mine = partials + std::int64_t{blockIdx.x} * width;
  scale.each(packs, [&](int k, int e, int column) { mine[column] = dweight[k][e]; });
}

// One block per 32 columns: each warp sums every n-th partial, and the sums of the warps are added
// in order.
__global__ void __launch_bounds__(threads)
    sum_partials(float* dweight, const float* partials, int width, int count, WriteMode mode) {
  __shared__ float sums[threads];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int p = warp; p < count; p += warps) sum += partials[std::int64_t{p} * width + column];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int other = 1; other < warps; ++other) sum += sums[other * 32 + lane];
  dweight[column] = mode == WriteMode::accumulate ? sum + dweight[column] : sum;
}

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + rows_of_block - 1) / rows_of_block; }

}  // namespace

void rms_norm_forward(cudaStream_t stream, const RmsNormForward& args) {
  if (args.inverse.count == 0) return;
  with_compute_type(args.x.dtype, [&]<class T>(Type<T>) {
    with_row_shape<T>(args.width, is_aligned(args), [&]<int n, int held>() {
      start("rms_norm_forward", forward<T, n, held>,
            {static_cast<unsigned>(args.inverse.count), stream}, pointer<T>(args.x),
            pointer<T>(args.weight), pointer<T>(args.y), args.inverse.as<float>(),
            static_cast<int>(args.width), args.eps);
    });
  });
}

std::size_t rms_norm_partials(std::int64_t tokens, std::int64_t width) {
  return static_cast<std::size_t>(blocks_of(tokens) * width);
}

void rms_norm_backward(cudaStream_t stream, const RmsNormBackward& args, float* partials) {
  if (args.inverse.count == 0) {
    if (args.dweight_mode != WriteMode::overwrite) return;
    return check(cudaMemsetAsync(args.dweight.data, 0, args.dweight.bytes(), stream),
                 "rms_norm_backward");
  }
  const bool wanted = args.dweight_mode != WriteMode::none;
  const auto width = static_cast<int>(args.width);
  const auto tokens = static_cast<std::int64_t>(args.inverse.count);
  const std::int64_t blocks = blocks_of(tokens);
  with_compute_type(args.x.dtype, [&]<class T>(Type<T>) {
    with_row_shape<T>(args.width, is_aligned(args), [&]<int n, int held>() {
      const bool adds = args.dx_mode == WriteMode::accumulate;
      start("rms_norm_backward", adds ? backward<T, n, held, true> : backward<T, n, held, false>,
            {static_cast<unsigned>(blocks), stream}, pointer<T>(args.x), pointer<T>(args.weight),
            pointer<T>(args.dy), args.inverse.as<float>(), pointer<T>(args.dx),
            wanted ? partials : nullptr, width, tokens);
    });
  });
  if (!wanted) return;
  add_partials(stream, args.dweight, partials, width, static_cast<int>(blocks), args.dweight_mode);
}

void add_partials(cudaStream_t stream, atoll::View dweight, const float* partials, int width,
                  int count, WriteMode mode) {
  start("add_partials", sum_partials, {static_cast<unsigned>((width + 31) / 32), stream},
        dweight.as<float>(), partials, width, count, mode);
}

}  // namespace train::cuda
