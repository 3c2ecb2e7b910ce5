// Embedding rows and their gradient. The gradient sorts the tokens, so that one thread sums a few
// columns of a table row over its positions, in order.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

__device__ __forceinline__ bool is_bad(std::int32_t id, std::int64_t vocab, std::uint64_t position,
                                       BadId* bad) {
  if (id >= 0 && id < vocab) return false;
  tell(bad, id, position);
  return true;
}

// Copies zeros for a token outside the vocabulary.
template <class Chunk>
__global__ void __launch_bounds__(threads)
    copy_rows(const std::int32_t* tokens, const Chunk* table, Chunk* out, std::uint64_t chunks,
              std::uint64_t of_row, std::int64_t vocab, BadId* bad) {
  for (std::uint64_t i = first_item(); i < chunks; i += items_stride()) {
    const std::uint64_t token = i / of_row, chunk = i % of_row;
    const std::int32_t id = tokens[token];
    out[i] = is_bad(id, vocab, token, bad) ? Chunk{}
                                           : table[static_cast<std::uint64_t>(id) * of_row + chunk];
  }
}

__global__ void __launch_bounds__(threads) count_up(std::int32_t* positions, std::uint64_t n) {
  for (std::uint64_t i = first_item(); i < n; i += items_stride()) {
    positions[i] = static_cast<std::int32_t>(i);
  }
}

// One row of blocks per sorted position. Those at the beginning of a run of equal tokens sum it in
// order of positions: each thread sums n columns and loads several positions at a time.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    add_runs(const std::int32_t* ids, const std::int32_t* positions, const T* dy, float* dtable,
             std::uint64_t tokens, std::int64_t width, std::int64_t vocab, WriteMode mode,
             BadId* bad) {
  constexpr unsigned ahead = 4;
  const std::uint64_t first = blockIdx.x;
  const std::int32_t id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
  if (is_bad(id, vocab, static_cast<std::uint64_t>(positions[first]), bad)) return;
  const std::int64_t column = n * static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= width) return;
  constexpr int n_of_sums = n < 4 ? n : 4;  // a Pack has at most 16 bytes, which are 4 floats
  using Sums = Pack<float, n_of_sums>;
  Sums sums[n / n_of_sums] = {};
  auto* const to = reinterpret_cast<Sums*>(dtable + id * width + column);
  if (mode == WriteMode::accumulate) {
#pragma unroll
    for (int k = 0; k < n / n_of_sums; ++k) sums[k] = to[k];
  }
  bool more = true;
  for (std::uint64_t i = first; more; i += ahead) {
    bool here[ahead];
    Pack<T, n> rows[ahead];
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      here[k] = i + k < tokens && ids[i + k] == id;
      if (here[k]) {
        rows[k] = *reinterpret_cast<const Pack<T, n>*>(dy + positions[i + k] * width + column);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      if (!here[k]) continue;
#pragma unroll
      for (int e = 0; e < n; ++e) {
        sums[e / n_of_sums].values[e % n_of_sums] += convert<float>(rows[k].values[e]);
      }
    }
    more = here[ahead - 1];
  }
#pragma unroll
  for (int k = 0; k < n / n_of_sums; ++k) to[k] = sums[k];
}

// Memory of the sort: positions before and after, sorted ids, and cub's own scratch.
struct Scratch {
  std::int32_t *positions, *sorted_ids, *sorted_positions;
  void* sort;
  std::size_t sort_bytes;
};

std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Scratch bytes of a sort with keys of any number of bits.
std::size_t sort_bytes(std::uint64_t tokens) {
  std::size_t bytes = 0;
  const std::int32_t* in = nullptr;
  std::int32_t* out = nullptr;
  check(
      cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out, static_cast<int>(tokens)),
      "cub sort");
  return bytes;
}

Scratch cut(void* scratch, std::uint64_t tokens) {
  const std::size_t each = round_up(tokens * sizeof(std::int32_t));
  auto* next = static_cast<std::byte*>(scratch);
  const auto take = [&] {
    return reinterpret_cast<std::int32_t*>(std::exchange(next, next + each));
  };
  auto *const positions = take(), *const ids = take(), *const sorted = take();
  return {positions, ids, sorted, next, sort_bytes(tokens)};
}

}  // namespace

void embedding_forward(cudaStream_t stream, atoll::ConstView tokens, atoll::ConstView table,
                       atoll::View out, std::int64_t width, BadId* bad) {
  if (tokens.count == 0) return;
  const auto vocab = static_cast<std::int64_t>(table.count) / width;
  const std::size_t row_bytes = static_cast<std::size_t>(width) * size_of(table.dtype);
  const auto launch = [&]<class Chunk>(Type<Chunk>) {
    const std::uint64_t of_row = row_bytes / sizeof(Chunk), chunks = tokens.count * of_row;
    start("embedding_forward", copy_rows<Chunk>, {blocks_for(chunks), stream},
          tokens.as<std::int32_t>(), static_cast<const Chunk*>(table.data),
          static_cast<Chunk*>(out.data), chunks, of_row, vocab, bad);
  };
  if (row_bytes % 16 == 0 && all_aligned(table, out)) {
    launch(Type<uint4>{});
  } else {
    launch(Type<std::uint16_t>{});
  }
}

std::size_t embedding_scratch(std::uint64_t tokens) {
  return 3 * round_up(tokens * sizeof(std::int32_t)) + sort_bytes(tokens);
}

void embedding_backward(cudaStream_t stream, const EmbeddingBackward& args, void* scratch,
                        BadId* bad) {
  if (args.mode == WriteMode::overwrite) {
    check(cudaMemsetAsync(args.dtable.data, 0, args.dtable.bytes(), stream), "embedding_backward");
  }
  if (args.tokens.count == 0) return;
  Scratch parts = cut(scratch, args.tokens.count);
  start("embedding_backward", count_up, {blocks_for(args.tokens.count), stream}, parts.positions,
        args.tokens.count);
  // The sort is stable, so tokens of a row keep their order. It compares only the bits that valid
  // tokens have; an invalid token may split a run, but then the step fails anyway.
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(args.vocab)));
  check(
      cub::DeviceRadixSort::SortPairs(
          parts.sort, parts.sort_bytes, args.tokens.as<std::int32_t>(), parts.sorted_ids,
          static_cast<const std::int32_t*>(parts.positions), parts.sorted_positions,
          static_cast<int>(args.tokens.count), 0, std::min(bits, 32), stream),
      "cub sort");
  with_compute_type(args.dy.dtype, [&]<class T>(Type<T>) {
    constexpr int n = pack_of<T>;
    const bool packed = args.width % n == 0 && all_aligned(args.dy, args.dtable);
    const std::int64_t columns = args.width / (packed ? n : 1);
    const dim3 blocks(static_cast<unsigned>(args.tokens.count),
                      static_cast<unsigned>((columns + threads - 1) / threads));
    start("embedding_backward", packed ? add_runs<T, n> : add_runs<T, 1>, {blocks, stream},
          parts.sorted_ids, parts.sorted_positions, pointer<T>(args.dy), args.dtable.as<float>(),
          args.tokens.count, args.width, args.vocab, args.mode, bad);
  });
}

}  // namespace train::cuda
