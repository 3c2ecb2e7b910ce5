// The gradient of a bias: sums of the columns of a matrix.
#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

// Rows that one block sums.
constexpr std::int64_t rows_of_block = 64;

// A block sums `threads` columns of its rows; a thread sums one column.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_rows(const T* dy, float* partials, std::int64_t width, std::int64_t tokens) {
  const std::int64_t column = std::int64_t{blockIdx.y} * threads + threadIdx.x;
  if (column >= width) return;
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_of_block;
  const std::int64_t end = begin + rows_of_block < tokens ? begin + rows_of_block : tokens;
  float sum = 0;
  for (std::int64_t token = begin; token < end; ++token) {
    sum += convert<float>(dy[token * width + column]);
  }
  partials[std::int64_t{blockIdx.x} * width + column] = sum;
}

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + rows_of_block - 1) / rows_of_block; }

}  // namespace

std::size_t bias_partials(std::int64_t tokens, std::int64_t width) {
  return static_cast<std::size_t>(blocks_of(tokens) * width);
}

void bias_backward(cudaStream_t stream, const BiasBackward& args, float* partials) {
  const auto tokens = static_cast<std::int64_t>(args.dy.count) / args.width;
  const std::int64_t blocks = blocks_of(tokens);
  const auto columns = static_cast<unsigned>((args.width + threads - 1) / threads);
  if (blocks > 0) {
    with_compute_type(args.dy.dtype, [&]<class T>(Type<T>) {
      start("bias_backward", sum_rows<T>, {dim3(static_cast<unsigned>(blocks), columns), stream},
            pointer<T>(args.dy), partials, args.width, tokens);
    });
  }
  add_partials(stream, args.dbias, partials, static_cast<int>(args.width), static_cast<int>(blocks),
               args.mode);
}

}  // namespace train::cuda
