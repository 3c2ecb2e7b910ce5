// Each kernel reads and writes every element once, so memory bandwidth limits it. The products,
// which take most of the time of a step, come from a library (Options::multiply).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "arithmetic.hpp"
#include "atoll/cuda.hpp"
#include "atoll/cuda/launch.cuh"

namespace muon {
namespace {

using atoll::ConstView;
using atoll::Stream;
using atoll::View;
using atoll::cuda::blocks_for;
using atoll::cuda::check;
using atoll::cuda::convert;
using atoll::cuda::Current;
using atoll::cuda::first_item;
using atoll::cuda::is_aligned;
using atoll::cuda::items_stride;
using atoll::cuda::native;
using atoll::cuda::Pack;
using atoll::cuda::start;
using atoll::cuda::threads;

constexpr int warps = threads / 32;
// Largest number of blocks that sum the squares of one array. It limits the number of partial sums.
constexpr std::uint64_t most_sums = 512;

// Adds the values of all threads of the block, in a fixed order. The result is valid in thread 0.
__device__ __forceinline__ double sum_of_block(double value) {
  __shared__ double sums[warps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < warps; ++warp) sum += sums[warp];
  }
  return sum;
}

// sums[block] = the sum of the squares of the elements that the block reads.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_squares_of(double* sums, const T* values, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    const auto x = convert<double>(values[i]);
    sum += x * x;
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block adds all partial sums.
__global__ void __launch_bounds__(threads)
    add_sums(double* result, const double* sums, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = threadIdx.x; i < count; i += threads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *result = sum;
}

// Kernels still run after a failure of the stream, but host functions do not. A host function sets
// *permit before this kernel, which clears it; *permit == 0 therefore means that the stream failed.
__global__ void __launch_bounds__(threads)
    measure_step(Figures* figures, float max_norm, volatile int* permit) {
  if (threadIdx.x != 0) return;
  const auto norm = static_cast<float>(sqrt(figures->squares));
  const bool clips = max_norm > 0 && norm > max_norm;
  const bool changes = isfinite(norm) && *permit != 0;
  *permit = 0;
  figures->norm = static_cast<double>(norm);
  figures->factor = !changes ? nan("") : static_cast<double>(clips ? max_norm / norm : 1.0f);
  if (changes) figures->steps += 1;
}

template <class To, class From>
__global__ void __launch_bounds__(threads)
    convert_each(To* dst, const From* src, std::uint64_t count) {
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    dst[i] = convert<To>(src[i]);
  }
}

template <class T>
__global__ void __launch_bounds__(threads)
    divide_by_root(T* values, std::uint64_t count, const double* squares) {
  const auto scale = static_cast<float>(1 / (sqrt(*squares) + 1e-7));
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    values[i] = convert<T>(convert<float>(values[i]) * scale);
  }
}

template <class T, int n>
__global__ void __launch_bounds__(threads)
    combine_packs(T* into, float keep, const T* other, float factor, std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    auto x = reinterpret_cast<const Pack<T, n>*>(into)[i];
    const auto y = reinterpret_cast<const Pack<T, n>*>(other)[i];
#pragma unroll
    for (int e = 0; e < n; ++e) {
      x.values[e] =
          convert<T>(keep * convert<float>(x.values[e]) + factor * convert<float>(y.values[e]));
    }
    reinterpret_cast<Pack<T, n>*>(into)[i] = x;
  }
}

__global__ void __launch_bounds__(threads)
    momentum_each(const float* gradient, float* momentum, float* out, std::uint64_t count,
                  float beta, const Figures* figures) {
  const auto factor = static_cast<float>(figures->factor);
  if (isnan(factor)) return;
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    const float g = gradient[i] * factor;
    const float m = beta * momentum[i] + g;
    momentum[i] = m;
    out[i] = g + beta * m;
  }
}

__global__ void __launch_bounds__(threads)
    update_each(float* weights, const float* update, std::uint64_t count, float rate, float keep,
                const Figures* figures) {
  if (isnan(figures->factor)) return;
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    weights[i] = weights[i] * keep - rate * update[i];
  }
}

__global__ void __launch_bounds__(threads) adamw_each(AdamWStep s) {
  __shared__ float rate, root;
  const auto factor = static_cast<float>(s.figures->factor);
  if (isnan(factor)) return;
  if (threadIdx.x == 0) {
    const double first = 1 - pow(static_cast<double>(s.beta1), s.figures->steps);
    const double second = 1 - pow(static_cast<double>(s.beta2), s.figures->steps);
    rate = static_cast<float>(static_cast<double>(s.rate) / first);
    root = static_cast<float>(1 / sqrt(second));
  }
  __syncthreads();
  const auto* const gradient = static_cast<const float*>(s.gradient.data);
  auto* const weights = static_cast<float*>(s.weights.data);
  auto* const moment1 = static_cast<float*>(s.moment1.data);
  auto* const moment2 = static_cast<float*>(s.moment2.data);
  for (std::uint64_t i = first_item(); i < s.weights.count; i += items_stride()) {
    const float g = gradient[i] * factor;
    const float m = s.beta1 * moment1[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * moment2[i] + (1 - s.beta2) * g * g;
    moment1[i] = m;
    moment2[i] = v;
    weights[i] = weights[i] * s.keep - rate * m / (sqrtf(v) * root + s.epsilon);
  }
}

// Calls body with a pointer to the elements: float* or __nv_bfloat16*, const for a ConstView.
template <class Body>
void with_pointer(ConstView view, const Body& body) {
  if (view.dtype == atoll::DType::bf16) {
    body(static_cast<const __nv_bfloat16*>(view.data));
  } else {
    body(static_cast<const float*>(view.data));
  }
}
template <class Body>
void with_pointer(View view, const Body& body) {
  if (view.dtype == atoll::DType::bf16) {
    body(static_cast<__nv_bfloat16*>(view.data));
  } else {
    body(static_cast<float*>(view.data));
  }
}

// Each block of adamw_each first computes two f64 powers; few blocks keep the cost of that small.
constexpr std::uint64_t most_adamw_blocks = 8192;

class CudaArithmetic final : public Arithmetic {
 public:
  explicit CudaArithmetic(const atoll::Device& device)
      : device_(device), permit_memory_(device.allocate_staging(sizeof(int))) {
    permit() = 0;
  }

  void sum_squares(Stream& stream, std::span<const ConstView> values, Figures* figures) override {
    const Current current(device_.ordinal());
    std::uint64_t count = 0;
    for (const ConstView& view : values) count += sums_of(view);
    double* const sums = scratch(stream, count);
    std::uint64_t first = 0;
    for (const ConstView& view : values) {
      first += start_sums(stream, sums + first, view);
    }
    start("add_sums", add_sums, {1, native(stream)}, &figures->squares, sums, count);
  }

  void measure(Stream& stream, Figures* figures, float max_norm) override {
    stream.enqueue([word = &permit()] { *word = 1; });
    const Current current(device_.ordinal());
    start("measure", measure_step, {1, native(stream)}, figures, max_norm, &permit());
  }

  void convert(Stream& stream, View dst, ConstView src) override {
    if (src.count == 0) return;
    const Current current(device_.ordinal());
    with_pointer(dst, [&]<class To>(To* to) {
      with_pointer(src, [&]<class From>(const From* from) {
        start("convert", convert_each<To, From>, {blocks_for(src.count), native(stream)}, to, from,
              src.count);
      });
    });
  }

  void normalize(Stream& stream, View x) override {
    const Current current(device_.ordinal());
    const std::uint64_t count = sums_of(x);
    double* const sums = scratch(stream, count + 1);
    start_sums(stream, sums + 1, x);
    start("add_sums", add_sums, {1, native(stream)}, sums, sums + 1, count);
    with_pointer(x, [&]<class T>(T* values) {
      start("normalize", divide_by_root<T>, {blocks_for(x.count), native(stream)}, values, x.count,
            sums);
    });
  }

  void combine(Stream& stream, View into, float keep, ConstView other, float factor) override {
    const Current current(device_.ordinal());
    with_pointer(into, [&]<class T>(T* x) {
      constexpr int n = 16 / static_cast<int>(sizeof(T));
      const auto* const y = static_cast<const T*>(other.data);
      const std::uint64_t packs = is_aligned(x, 16) && is_aligned(y, 16) ? into.count / n : 0;
      const std::uint64_t done = packs * n, rest = into.count - done;
      if (packs > 0) {
        start("combine", combine_packs<T, n>, {blocks_for(packs), native(stream)}, x, keep, y,
              factor, packs);
      }
      if (rest > 0) {
        start("combine", combine_packs<T, 1>, {blocks_for(rest), native(stream)}, x + done, keep,
              y + done, factor, rest);
      }
    });
  }

  void momentum(Stream& stream, const MomentumStep& s) override {
    const std::uint64_t count = s.gradient.count;
    if (count == 0) return;
    const Current current(device_.ordinal());
    start("momentum", momentum_each, {blocks_for(count), native(stream)}, s.gradient.as<float>(),
          s.momentum.as<float>(), s.out.as<float>(), count, s.beta, s.figures);
  }

  void update(Stream& stream, const MatrixStep& s) override {
    const std::uint64_t count = s.weights.count;
    if (count == 0) return;
    const Current current(device_.ordinal());
    start("update", update_each, {blocks_for(count), native(stream)}, s.weights.as<float>(),
          s.update.as<float>(), count, s.rate, s.keep, s.figures);
  }

  void adamw(Stream& stream, const AdamWStep& s) override {
    const std::uint64_t count = s.weights.count;
    if (count == 0) return;
    const Current current(device_.ordinal());
    start("adamw", adamw_each, {blocks_for(count, most_adamw_blocks), native(stream)}, s);
  }

 private:
  int& permit() { return *static_cast<int*>(permit_memory_.data()); }

  // Number of partial sums of squares of a view. A thread adds at least 8 elements.
  static std::uint64_t sums_of(ConstView view) {
    return view.count == 0 ? 0 : blocks_for((view.count + 7) / 8, most_sums);
  }
  // Enqueues the partial sums of a view and returns their number.
  static std::uint64_t start_sums(Stream& stream, double* sums, ConstView view) {
    const std::uint64_t blocks = sums_of(view);
    if (blocks == 0) return 0;
    with_pointer(view, [&]<class T>(const T* values) {
      start("sum_squares", sum_squares_of<T>, {static_cast<unsigned>(blocks), native(stream)}, sums,
            values, view.count);
    });
    return blocks;
  }

  double* scratch(Stream& stream, std::uint64_t count) {
    // Always large enough for normalize(), whose calls then do not enlarge the buffer one by one.
    const std::size_t bytes = std::max(count, most_sums + 1) * sizeof(double);
    if (bytes > scratch_.bytes()) {
      if (scratch_.bytes() > 0) stream.synchronize();  // queued work still uses the old scratch
      scratch_ = {};
      scratch_ = device_.allocate(bytes);
    }
    return static_cast<double*>(scratch_.data());
  }

  atoll::Device device_;
  atoll::Buffer permit_memory_;  // an int that a host function sets and measure_step clears
  atoll::Buffer scratch_;        // partial sums
};

}  // namespace

std::shared_ptr<Arithmetic> cuda_arithmetic(const atoll::Device& device) {
  return std::make_shared<CudaArithmetic>(device);
}

}  // namespace muon
