// The peak rate of matrix products, the denominator of MFU.
#include <algorithm>
#include <array>
#include <chrono>

#include "atoll/cuda.hpp"
#include "atoll/cuda/runtime.hpp"
#include "fail.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/cuda/matmul.hpp"
#include "model/normal_values.hpp"

namespace train::cuda {
namespace {

using atoll::DType;
using atoll::cuda::Current;
using atoll::cuda::native;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Measures square products of one size.
class PeakProduct {
 public:
  PeakProduct(const atoll::Device& device, DType dtype, std::int64_t size)
      : size_(size), dtype_(dtype), stream_(device.stream({.name = "peak"})), matmul_(device) {
    const auto elements = static_cast<std::size_t>(size * size);
    for (atoll::Buffer& matrix : matrices_) matrix = device.allocate(elements * size_of(dtype));
    fill_normal(stream_, matrices_[0].view(dtype));
    fill_normal(stream_, matrices_[1].view(dtype));
    seconds(1);
  }
  double operations() const {
    const auto n = static_cast<double>(size_);
    return 2 * n * n * n;
  }
  // Returns the time of `batch` consecutive products in seconds.
  double seconds(int batch) {
    const Product product{size_,
                          size_,
                          size_,
                          Operand::plain,
                          Operand::transposed,
                          dtype_,
                          dtype_,
                          WriteMode::overwrite};
    stream_.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) {
      matmul_.run(native(stream_), product, matrices_[0].data(), matrices_[1].data(),
                  matrices_[2].data());
    }
    stream_.synchronize();
    return seconds_since(start);
  }

 private:
  std::int64_t size_;
  DType dtype_;
  std::array<atoll::Buffer, 3> matrices_;
  atoll::Stream stream_;
  MatMul matmul_;
};

}  // namespace

double matrix_peak_flops(const atoll::Device& device, DType dtype, double seconds) {
  constexpr std::int64_t smallest = 128, largest = 8192;
  constexpr int batch = 4;
  const Current current(device.ordinal());
  // A separate Device, so that the caller's peak_allocated_bytes() ignores this memory.
  const atoll::Device own = atoll::Device::cuda(device.ordinal());
  double best = 0;
  for (std::int64_t size = smallest; size <= largest; size *= 2) {
    try {
      PeakProduct product(own, dtype, size);
      const auto start = Clock::now();
      double once = 0;
      do {
        once = product.seconds(batch) / batch;
        best = std::max(best, product.operations() / once);
      } while (size == largest && seconds_since(start) < seconds);
      // The next size would take 8 times as long, which exceeds the time limit.
      if (8 * batch * once > seconds) break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory || best == 0) throw;
      break;  // too little GPU memory is free for a workspace of this size
    }
  }
  return best;
}

}  // namespace train::cuda
