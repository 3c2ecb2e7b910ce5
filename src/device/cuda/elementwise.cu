// Kernels for cast, dequantize, add, scale, pack_rows and fill_normal.
#include "device/cuda/elements.cuh"
#include "device/cuda/ops.hpp"
#include "device/int8_blocks.hpp"

namespace atoll_v1::atoll::cuda {
namespace {

// Each thread converts `n` elements at a time, so that the wider type moves in packs of 16 bytes.
template <class To, class From, int n>
__global__ void __launch_bounds__(threads)
    cast_packs(To* dst, const From* src, std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto from = reinterpret_cast<const Pack<From, n>*>(src)[i];
    Pack<To, n> to;
#pragma unroll
    for (int k = 0; k < n; ++k) to.values[k] = convert<To>(from.values[k]);
    reinterpret_cast<Pack<To, n>*>(dst)[i] = to;
  }
}

// Each thread converts four codes, which it reads as one word. Consecutive threads read consecutive
// words of a block, and threads of one block share the read of its scale.
template <class To>
__global__ void __launch_bounds__(threads)
    dequantize_words(To* dst, const Int8Block* blocks, std::uint64_t words) {
  constexpr std::uint64_t in_block = int8_block / 4;
  for (std::uint64_t i = first_item(); i < words; i += items_stride()) {
    const Int8Block& block = blocks[i / in_block];
    const auto codes = reinterpret_cast<const Pack<std::int8_t, 4>*>(block.codes)[i % in_block];
    Pack<To, 4> to;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to.values[k] = convert<To>(static_cast<float>(codes.values[k]) * block.scale);
    }
    reinterpret_cast<Pack<To, 4>*>(dst)[i] = to;
  }
}

template <class T, int n>
__global__ void __launch_bounds__(threads) add_packs(T* dst, const T* src, std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    auto to = reinterpret_cast<Pack<T, n>*>(dst)[i];
    const auto from = reinterpret_cast<const Pack<T, n>*>(src)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) to.values[k] += from.values[k];
    reinterpret_cast<Pack<T, n>*>(dst)[i] = to;
  }
}

template <class T, int n>
__global__ void __launch_bounds__(threads)
    scale_packs(T* dst, const T* src, Wide<T> factor, std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    auto pack = reinterpret_cast<const Pack<T, n>*>(src)[i];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      pack.values[k] = convert<T>(factor * convert<Wide<T>>(pack.values[k]));
    }
    reinterpret_cast<Pack<T, n>*>(dst)[i] = pack;
  }
}

// blockIdx.y is the row of dst. `first`, `stride` and `count` are numbers of packs of n elements.
template <class To, class From, int n>
__global__ void __launch_bounds__(threads)
    pack_grid(To* dst, const From* src, RowGrid grid, Wide<To> factor, bool scales) {
  const std::uint64_t column = blockIdx.y / grid.rows, row = blockIdx.y % grid.rows;
  const auto* const from = reinterpret_cast<const Pack<From, n>*>(src) + grid.first +
                           (row * grid.columns + column) * grid.stride;
  auto* const to = reinterpret_cast<Pack<To, n>*>(dst) + blockIdx.y * grid.count;
  for (std::uint64_t i = first_item(); i < grid.count; i += items_stride()) {
    const auto read = from[i];
    Pack<To, n> written;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      written.values[k] = convert<To>(read.values[k]);
      if (scales) written.values[k] = convert<To>(factor * convert<Wide<To>>(written.values[k]));
    }
    to[i] = written;
  }
}

__global__ void __launch_bounds__(threads)
    normal_elements(float* dst, std::uint64_t count, std::uint64_t key, std::uint64_t first,
                    float mean, float deviation) {
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    const std::uint64_t random = mix(key + (first + i + 1) * 0x9e3779b97f4a7c15u);
    // Box-Muller on two uniforms in (0, 1].
    const double u = (static_cast<double>(random >> 32) + 1.0) * 0x1p-32;
    const double v = (static_cast<double>(random & 0xffffffffu) + 1.0) * 0x1p-32;
    const double normal = sqrt(-2.0 * log(u)) * cospi(2.0 * v);
    dst[i] = mean + deviation * static_cast<float>(normal);
  }
}

// If both arrays are aligned, calls body.operator()<n>(first, packs) for all whole packs of n
// elements, which are 16 bytes of the wider type. Then calls it with n = 1 for the other elements.
template <class To, class From, class Body>
void in_packs(const To* dst, const From* src, std::uint64_t count, const Body& body) {
  constexpr int n = 16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  std::uint64_t done = 0;
  if (is_aligned(dst, sizeof(To) * n) && is_aligned(src, sizeof(From) * n) && count >= n) {
    body.template operator()<n>(std::uint64_t{0}, count / n);
    done = count / n * n;
  }
  if (done < count) body.template operator()<1>(done, count - done);
}

template <class T>
void launch_add(cudaStream_t stream, T* dst, const T* src, std::uint64_t count) {
  in_packs(dst, src, count, [&]<int n>(std::uint64_t first, std::uint64_t packs) {
    start("add", add_packs<T, n>, {blocks_for(packs), stream}, dst + first, src + first, packs);
  });
}

template <class To, class From>
void launch_pack(cudaStream_t stream, To* dst, const From* src, RowGrid grid, double factor) {
  constexpr int wide = 16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  const bool packs = grid.count % wide == 0 && grid.stride % wide == 0 && grid.first % wide == 0 &&
                     is_aligned(dst, sizeof(To) * wide) && is_aligned(src, sizeof(From) * wide);
  const auto run = [&]<int n>() {
    grid.count /= n;
    grid.stride /= n;
    grid.first /= n;
    const dim3 blocks(std::min(blocks_for(grid.count), 4096u),
                      static_cast<unsigned>(grid.rows * grid.columns));
    start("pack_rows", pack_grid<To, From, n>, {blocks, stream}, dst, src, grid,
          static_cast<Wide<To>>(factor), factor != 1.0);
  };
  packs ? run.template operator()<wide>() : run.template operator()<1>();
}

}  // namespace

void CudaOps::pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                        double factor) {
  ATOLL_ASSERT(dst.count == grid.rows * grid.columns * grid.count, "pack_rows: sizes differ");
  ATOLL_ASSERT(grid.rows * grid.columns < 1 << 16,
               "pack_rows: more rows than a grid of blocks has");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  const auto launch = [&]<class To, class From>(Type<To>, Type<From>) {
    launch_pack(native(stream), static_cast<To*>(dst.data), static_cast<const From*>(src.data),
                grid, factor);
  };
  if (dst.dtype == src.dtype) {
    with_gpu_type(dst.dtype, [&]<class T>(Type<T> type) { launch(type, type); });
  } else {
    ATOLL_ASSERT(dst.dtype == DType::f32,
                 "pack_rows: dst has another type than src, but is not f32");
    with_gpu_floating_type(src.dtype, [&]<class T>(Type<T> type) { launch(Type<float>(), type); });
  }
}

void CudaOps::cast(Stream& stream, View dst, ConstView src) {
  ATOLL_ASSERT(dst.count == src.count, "cast: counts differ");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  if (dst.dtype == src.dtype) {
    if (dst.data != src.data) stream.backend().copy(dst.data, src.data, dst.bytes());
    return;
  }
  with_gpu_floating_type(dst.dtype, [&]<class To>(Type<To>) {
    with_gpu_floating_type(src.dtype, [&]<class From>(Type<From>) {
      auto* const to = static_cast<To*>(dst.data);
      const auto* const from = static_cast<const From*>(src.data);
      if constexpr (!std::is_same_v<To, From>) {
        in_packs(to, from, dst.count, [&]<int n>(std::uint64_t first, std::uint64_t packs) {
          start("cast", cast_packs<To, From, n>, {blocks_for(packs), native(stream)}, to + first,
                from + first, packs);
        });
      }
    });
  });
}

void CudaOps::dequantize(Stream& stream, View dst, ConstView blocks) {
  ATOLL_ASSERT(dst.count % 4 == 0 && blocks.bytes() == int8_bytes(dst.count),
               "dequantize: sizes differ, or the count is no multiple of 4");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  with_gpu_floating_type(dst.dtype, [&]<class To>(Type<To>) {
    start("dequantize", dequantize_words<To>, {blocks_for(dst.count / 4), native(stream)},
          static_cast<To*>(dst.data), static_cast<const Int8Block*>(blocks.data), dst.count / 4);
  });
}

void CudaOps::add(Stream& stream, View dst, ConstView src) {
  ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "add: views differ");
  ATOLL_ASSERT(dst.dtype == DType::f32 || dst.dtype == DType::f64, "add: f32 and f64 only");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  if (dst.dtype == DType::f32) {
    launch_add(native(stream), dst.as<float>(), src.as<float>(), dst.count);
  } else {
    launch_add(native(stream), dst.as<double>(), src.as<double>(), dst.count);
  }
}

void CudaOps::scale(Stream& stream, View dst, ConstView src, double factor) {
  ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "scale: views differ");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  with_gpu_floating_type(dst.dtype, [&]<class T>(Type<T>) {
    auto* const to = static_cast<T*>(dst.data);
    const auto* const from = static_cast<const T*>(src.data);
    in_packs(to, from, dst.count, [&]<int n>(std::uint64_t first, std::uint64_t packs) {
      start("scale", scale_packs<T, n>, {blocks_for(packs), native(stream)}, to + first,
            from + first, static_cast<Wide<T>>(factor), packs);
    });
  });
}

void CudaOps::fill_normal(Stream& stream, View dst, const NormalFill& fill) {
  ATOLL_ASSERT(dst.dtype == DType::f32, "fill_normal: f32 only");
  if (dst.count == 0) return;
  const Current current(ordinal_);
  const std::uint64_t key = mix(mix(fill.seed + 0x9e3779b97f4a7c15u) ^ fill.stream);
  start("fill_normal", normal_elements, {blocks_for(dst.count), native(stream)}, dst.as<float>(),
        dst.count, key, fill.first, fill.mean, fill.deviation);
}

}  // namespace atoll_v1::atoll::cuda
