// Finds the documents in packed rows, with one block of threads.
#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

// Numbers of elements that one token has in q, in k, and in the log-sum-exp.
struct Strides {
  int queries, keys, statistics;
};

__global__ void __launch_bounds__(threads)
    find_documents(const std::int32_t* positions, int tokens, int documents, Strides strides,
                   DocumentIndex index) {
  // Numbers of documents that begin in tokens of earlier threads.
  __shared__ int before[threads + 1];
  const int each = (tokens + static_cast<int>(threads) - 1) / static_cast<int>(threads);
  const int begin = min(tokens, static_cast<int>(threadIdx.x) * each);
  const int end = min(tokens, begin + each);
  int mine = 0;
  for (int token = begin; token < end; ++token) mine += positions[token] == 0 ? 1 : 0;
  before[threadIdx.x + 1] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    before[0] = 0;
    for (unsigned t = 0; t < threads; ++t) before[t + 1] += before[t];
  }
  __syncthreads();
  // Store the first token of each document where the key offsets will be.
  int document = before[threadIdx.x];
  for (int token = begin; token < end; ++token) {
    if (positions[token] == 0 && document < documents) index.keys[document++] = token;
  }
  for (int d = min(documents, before[threads]) + static_cast<int>(threadIdx.x); d <= documents;
       d += static_cast<int>(threads)) {
    index.keys[d] = tokens;
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < documents; d += static_cast<int>(threads)) {
    index.lengths[d] = index.keys[d + 1] - index.keys[d];
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d <= documents; d += static_cast<int>(threads)) {
    const int first = index.keys[d];
    index.queries[d] = first * strides.queries;
    index.keys[d] = first * strides.keys;
    index.statistics[d] = first * strides.statistics;
  }
}

// Elements of one array, rounded up so that each begins at a multiple of 256 bytes.
std::size_t padded(std::int64_t documents) {
  constexpr std::int64_t step = 256 / sizeof(std::int32_t);
  return static_cast<std::size_t>((documents + 1 + step - 1) / step * step);
}

}  // namespace

std::size_t DocumentIndex::bytes(std::int64_t documents) {
  return 4 * padded(documents) * sizeof(std::int32_t);
}

DocumentIndex DocumentIndex::in(void* memory, std::int64_t documents) {
  auto* const first = static_cast<std::int32_t*>(memory);
  const std::size_t step = padded(documents);
  return {first, first + step, first + 2 * step, first + 3 * step};
}

void document_index(cudaStream_t stream, atoll::ConstView positions, const AttentionShape& shape,
                    const DocumentIndex& index) {
  const Strides strides{static_cast<int>(shape.heads * shape.head_dim),
                        static_cast<int>(shape.kv_heads * shape.head_dim),
                        static_cast<int>(shape.heads)};
  start("document_index", find_documents, {1, stream}, positions.as<std::int32_t>(),
        static_cast<int>(positions.count), static_cast<int>(shape.documents), strides, index);
}

}  // namespace train::cuda
