// Conversion of bf16 matrices to 8-bit floating point.
#include <cuda_fp8.h>

#include "model/cuda/fp8.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

constexpr int pack = 8;              // elements that a thread converts at once
constexpr int tile = 64;             // rows and columns of the tile that a block transposes
constexpr int transposed_pack = 16;  // bytes that a thread stores at once in the transpose
// Limit on the blocks that search one matrix for its largest value, about 8 per multiprocessor:
// each ends with an atomic operation on the same word.
constexpr unsigned searching_blocks = 1024;
constexpr std::size_t most_sources = 8;     // maximum number of matrices that one kernel searches
constexpr std::uint32_t infinity = 0x7f80;  // bits of infinity in bf16; those of NaN are larger

// The largest power of two that times the largest value is at most the format's largest number. A
// power of two, so that scaling rounds nothing. 1 for zeros, and with infinity or NaN.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ float scale_of(std::uint32_t largest) {
  constexpr float most = format == __NV_E4M3 ? 448.0f : 57344.0f;
  // Limits the scale, so that its reciprocal is no subnormal number.
  constexpr int most_exponent = 100;
  if (largest == 0 || largest >= infinity) return 1.0f;
  const float ratio = most / __uint_as_float(largest << 16);
  const int exponent = static_cast<int>(__float_as_uint(ratio) >> 23) - 127;
  return __uint_as_float(static_cast<std::uint32_t>(min(exponent, most_exponent) + 127) << 23);
}

// Saturates, because the GPU converts so in one instruction; it only matters for infinities.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ Pack<std::uint8_t, pack> converted(const Pack<__nv_bfloat16, pack>& from,
                                                              float scale) {
  Pack<std::uint8_t, pack> to;
#pragma unroll
  for (int e = 0; e < pack; e += 2) {
    const float2 two{__bfloat162float(from.values[e]) * scale,
                     __bfloat162float(from.values[e + 1]) * scale};
    const __nv_fp8x2_storage_t both = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, format);
    to.values[e] = static_cast<std::uint8_t>(both & 0xffu);
    to.values[e + 1] = static_cast<std::uint8_t>(both >> 8);
  }
  return to;
}

template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ float prepare_scale(Fp8Scale* scale) {
  const std::uint32_t largest = scale->largest;
  const float factor = scale_of<format>(largest);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    constexpr std::uint32_t nan = 0x7fc0;
    scale->inverse = largest >= infinity ? __uint_as_float(nan << 16) : 1.0f / factor;
  }
  return factor;
}

struct Source {
  const __nv_bfloat16* x;
  std::uint64_t packs;
};
struct Sources {
  Source all[most_sources];
};

// Blocks of row y search matrix y. The bits of |x|, which they compare, have the values' order.
__global__ void __launch_bounds__(threads)
    find_largest_packs(const __grid_constant__ Sources sources, Fp8Scale* scales) {
  const Source source = sources.all[blockIdx.y];
  if (std::uint64_t{blockIdx.x} * threads >= source.packs) return;
  __shared__ std::uint32_t of_warps[warps];
  std::uint32_t largest = 0;
  for (std::uint64_t i = first_item(); i < source.packs; i += items_stride()) {
    const auto bits = reinterpret_cast<const Pack<std::uint16_t, pack>*>(source.x)[i];
#pragma unroll
    for (int e = 0; e < pack; ++e) {
      largest = max(largest, static_cast<std::uint32_t>(bits.values[e] & 0x7fffu));
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) largest = max(largest, of_warps[w]);
  atomicMax(&scales[blockIdx.y].largest, largest);
}

template <__nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(threads)
    convert_packs(const __nv_bfloat16* x, std::uint64_t packs, Fp8Scale* scale, std::uint8_t* out) {
  const float factor = prepare_scale<format>(scale);
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    reinterpret_cast<Pack<std::uint8_t, pack>*>(out)[i] =
        converted<format>(reinterpret_cast<const Pack<__nv_bfloat16, pack>*>(x)[i], factor);
  }
}

// A block converts a tile and stores its transpose, and the tile itself if `plain` is given.
template <__nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(threads)
    convert_tiles(const __nv_bfloat16* x, std::uint64_t rows, std::uint64_t columns,
                  Fp8Scale* scale, std::uint8_t* plain, std::uint8_t* transposed) {
  // Element (row, column) of the tile is at [column][row]. The padding spreads rows over banks.
  __shared__ std::uint32_t words[tile][tile / 4 + 1];
  const float factor = prepare_scale<format>(scale);
  const std::uint64_t across = (columns + tile - 1) / tile;
  const std::uint64_t top = blockIdx.x / across * tile, left = blockIdx.x % across * tile;
  constexpr int packs_of_row = tile / pack;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < tile * packs_of_row; i += threads) {
    const int r = i / packs_of_row, c = i % packs_of_row * pack;
    const std::uint64_t row = top + static_cast<std::uint64_t>(r);
    const std::uint64_t column = left + static_cast<std::uint64_t>(c);
    if (row >= rows || column >= columns) continue;
    const std::uint64_t at = row * columns + column;
    const auto bytes =
        converted<format>(*reinterpret_cast<const Pack<__nv_bfloat16, pack>*>(x + at), factor);
    if (plain != nullptr) *reinterpret_cast<Pack<std::uint8_t, pack>*>(plain + at) = bytes;
#pragma unroll
    for (int e = 0; e < pack; ++e) {
      reinterpret_cast<std::uint8_t*>(words[c + e])[r] = bytes.values[e];
    }
  }
  __syncthreads();
  constexpr int packs_of_column = tile / transposed_pack;
  static_assert(tile * packs_of_column == threads);
  const int c = static_cast<int>(threadIdx.x) / packs_of_column;
  const int r = static_cast<int>(threadIdx.x) % packs_of_column * transposed_pack;
  const std::uint64_t row = top + static_cast<std::uint64_t>(r);
  const std::uint64_t column = left + static_cast<std::uint64_t>(c);
  if (row >= rows || column >= columns) return;
  Pack<std::uint32_t, transposed_pack / 4> out;
#pragma unroll
  for (int w = 0; w < transposed_pack / 4; ++w) out.values[w] = words[c][r / 4 + w];
  *reinterpret_cast<Pack<std::uint32_t, transposed_pack / 4>*>(transposed + column * rows + row) =
      out;
}

template <__nv_fp8_interpretation_t format>
void convert(cudaStream_t stream, const Fp8Copies& args) {
  const auto rows = static_cast<std::uint64_t>(args.rows);
  const auto columns = static_cast<std::uint64_t>(args.columns);
  const auto* const x = pointer<__nv_bfloat16>(args.x);
  auto* const plain = static_cast<std::uint8_t*>(args.plain);
  if (args.transposed == nullptr) {
    const std::uint64_t packs = rows * columns / pack;
    start("to_fp8", convert_packs<format>, {blocks_for(packs), stream}, x, packs, args.scale,
          plain);
    return;
  }
  const std::uint64_t tiles = (rows + tile - 1) / tile * ((columns + tile - 1) / tile);
  start("to_fp8", convert_tiles<format>, {static_cast<unsigned>(tiles), stream}, x, rows, columns,
        args.scale, plain, static_cast<std::uint8_t*>(args.transposed));
}

}  // namespace

void find_largest(cudaStream_t stream, std::span<const atoll::ConstView> matrices,
                  Fp8Scale* scales) {
  while (!matrices.empty()) {
    const std::size_t count = std::min(matrices.size(), most_sources);
    Sources sources{};
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sources.all[i] = {pointer<__nv_bfloat16>(matrices[i]), matrices[i].count / pack};
      most = std::max(most, sources.all[i].packs);
    }
    const dim3 blocks(std::min(blocks_for(most), searching_blocks), static_cast<unsigned>(count));
    start("find_largest", find_largest_packs, {blocks, stream}, sources, scales);
    matrices = matrices.subspan(count);
    scales += count;
  }
}

void to_fp8(cudaStream_t stream, const Fp8Copies& args) {
  if (args.format == Fp8::e4m3) {
    convert<__NV_E4M3>(stream, args);
  } else {
    convert<__NV_E5M2>(stream, args);
  }
}

}  // namespace train::cuda
