// Embedding rows and their gradient. The gradient sorts the tokens: equal tokens form a run.
// Windows of sorted positions cut long runs, such as padding, into parts. A thread sums a few
// columns over one part, in order. The first part of a run is summed into the table. Each other
// part is summed into a row of partial sums of its window; a second kernel adds these to the table,
// in order.
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
  report(bad, id, position);
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

constexpr std::uint64_t window = 128;  // number of sorted positions in a window

// Whether a window begins in the middle of a run of equal ids.
__device__ __forceinline__ bool continues(const std::int32_t* ids, std::uint64_t first) {
  return first > 0 && ids[first - 1] == ids[first];
}

// Launched with a row of blocks for each position of the sorted ids. A window is a number of
// successive positions, and cuts a run of equal ids into parts. Only the blocks of the first
// position of a part work. They sum the part in the order of its positions: each thread sums n
// columns and loads several positions at a time. `partials` has a row for each window. The row
// receives the part that continues a run of the window before.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    add_runs(const std::int32_t* ids, const std::int32_t* positions, const T* dy, float* dtable,
             float* partials, std::uint64_t tokens, std::int64_t width, std::int64_t vocab,
             WriteMode mode, BadId* bad) {
  constexpr unsigned ahead = 4;
  const std::uint64_t first = blockIdx.x, number = first / window;
  const std::int32_t id = ids[first];
  const bool is_later_part = continues(ids, first);
  if (is_later_part && first % window != 0) return;
  // Later parts of a run skip a bad id, which the first part reports.
  if (is_later_part && (id < 0 || id >= vocab)) return;
  if (is_bad(id, vocab, static_cast<std::uint64_t>(positions[first]), bad)) return;
  const std::uint64_t end = tokens < (number + 1) * window ? tokens : (number + 1) * window;
  const std::int64_t column = n * static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= width) return;
  constexpr int n_of_sums = n < 4 ? n : 4;  // a Pack has at most 16 bytes, which are 4 floats
  using Sums = Pack<float, n_of_sums>;
  Sums sums[n / n_of_sums] = {};
  float* const row =
      is_later_part ? partials + static_cast<std::int64_t>(number) * width : dtable + id * width;
  auto* const to = reinterpret_cast<Sums*>(row + column);
  if (mode == WriteMode::accumulate && !is_later_part) {
#pragma unroll
    for (int k = 0; k < n / n_of_sums; ++k) sums[k] = to[k];
  }
  bool more = true;
  for (std::uint64_t i = first; more; i += ahead) {
    bool here[ahead];
    Pack<T, n> rows[ahead];
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      here[k] = i + k < end && ids[i + k] == id;
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

// A run of equal ids can reach over several windows, each of which has summed its part. The row of
// blocks of the window with the second part of a run adds this part and all later parts of the run
// to the table.
template <int n>
__global__ void __launch_bounds__(threads)
    add_parts(const std::int32_t* ids, const float* partials, float* dtable, std::uint64_t tokens,
              std::int64_t width, std::int64_t vocab) {
  constexpr unsigned ahead = 4;
  const std::uint64_t first = (blockIdx.x + std::uint64_t{1}) * window;
  const std::int32_t id = ids[first];
  if (!continues(ids, first) || id < 0 || id >= vocab) return;
  if (ids[first - window] == id && continues(ids, first - window))
    return;  // this window has the third or a later part of the run
  const std::int64_t column = n * static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= width) return;
  using Sums = Pack<float, n>;
  auto* const to = reinterpret_cast<Sums*>(dtable + id * width + column);
  Sums sums = *to;
  bool more = true;
  for (std::uint64_t i = first; more; i += ahead * window) {
    bool here[ahead];
    Sums parts[ahead];
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      const std::uint64_t at = i + k * window;
      here[k] = at < tokens && ids[at] == id && continues(ids, at);
      if (!here[k]) continue;
      const auto number = static_cast<std::int64_t>(at / window);
      parts[k] = *reinterpret_cast<const Sums*>(partials + number * width + column);
    }
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      if (!here[k]) continue;
#pragma unroll
      for (int e = 0; e < n; ++e) sums.values[e] += parts[k].values[e];
    }
    more = here[ahead - 1];
  }
  *to = sums;
}

// Memory of the sort: positions before and after, sorted ids, partial sums, and cub's own scratch.
struct Scratch {
  std::int32_t *positions, *sorted_ids, *sorted_positions;
  float* partials;
  void* sort;
  std::size_t sort_bytes;
};

std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Scratch bytes of a sort with keys of any number of bits.
std::size_t sort_bytes(std::uint64_t tokens) {
  std::size_t bytes = 0;
  const std::int32_t* in = nullptr;
  std::int32_t* out = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out, static_cast<int>(tokens)),
        "cub sort");
  return bytes;
}

std::uint64_t windows_of(std::uint64_t tokens) { return (tokens + window - 1) / window; }

std::size_t partial_bytes(std::uint64_t tokens, std::int64_t width) {
  return round_up(windows_of(tokens) * static_cast<std::size_t>(width) * sizeof(float));
}

Scratch cut(void* scratch, std::uint64_t tokens, std::int64_t width) {
  const std::size_t each = round_up(tokens * sizeof(std::int32_t));
  auto* next = static_cast<std::byte*>(scratch);
  const auto take = [&](std::size_t bytes) {
    return static_cast<void*>(std::exchange(next, next + bytes));
  };
  auto *const positions = take(each), *const ids = take(each), *const sorted = take(each),
              *const partials = take(partial_bytes(tokens, width));
  return {static_cast<std::int32_t*>(positions),
          static_cast<std::int32_t*>(ids),
          static_cast<std::int32_t*>(sorted),
          static_cast<float*>(partials),
          next,
          sort_bytes(tokens)};
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

std::size_t embedding_scratch(std::uint64_t tokens, std::int64_t width) {
  return 3 * round_up(tokens * sizeof(std::int32_t)) + partial_bytes(tokens, width) +
         sort_bytes(tokens);
}

void embedding_backward(cudaStream_t stream, const EmbeddingBackward& args, void* scratch,
                        BadId* bad) {
  if (args.mode == WriteMode::overwrite) {
    check(cudaMemsetAsync(args.dtable.data, 0, args.dtable.bytes(), stream), "embedding_backward");
  }
  if (args.tokens.count == 0) return;
  Scratch parts = cut(scratch, args.tokens.count, args.width);
  start("embedding_backward", count_up, {blocks_for(args.tokens.count), stream}, parts.positions,
        args.tokens.count);
  // The sort is stable, so tokens of a row keep their order. It compares only the bits that valid
  // tokens have; an invalid token may split a run, but then the step fails anyway.
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(args.vocab)));
  check(cub::DeviceRadixSort::SortPairs(
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
          parts.partials, args.tokens.count, args.width, args.vocab, args.mode, bad);
  });
  const std::uint64_t windows = windows_of(args.tokens.count);
  if (windows == 1) return;
  constexpr int n = pack_of<float>;
  const bool packed = args.width % n == 0 && all_aligned(args.dtable);
  const std::int64_t columns = args.width / (packed ? n : 1);
  const dim3 blocks(static_cast<unsigned>(windows - 1),
                    static_cast<unsigned>((columns + threads - 1) / threads));
  start("embedding_backward", packed ? add_parts<n> : add_parts<1>, {blocks, stream},
        parts.sorted_ids, parts.partials, args.dtable.as<float>(), args.tokens.count, args.width,
        args.vocab);
}

}  // namespace train::cuda
