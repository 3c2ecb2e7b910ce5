// Tensors with a copy on a GPU and a copy on the host, whose results tests compare.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "atoll/device.hpp"
#include "device/backend.hpp"
#include "model/cpu/cpu_ops.hpp"

namespace atoll_test {

// Creates tensors on both devices and compares their values.
class Both {
 public:
  struct Tensor {
    atoll::Buffer gpu, host;
    atoll::DType dtype;
    atoll::View on_gpu() const { return gpu.view(dtype); }
    atoll::View on_host() const { return host.view(dtype); }
  };

  Tensor zeros(atoll::DType dtype, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
    Tensor tensor{gpu_.allocate(bytes), host_.allocate(bytes), dtype};
    std::memset(tensor.host.data(), 0, bytes);
    push(tensor);
    return tensor;
  }
  Tensor random(atoll::DType dtype, std::int64_t count) {
    Tensor tensor = zeros(dtype, count);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = normal(random_);
      if (dtype == atoll::DType::f32) {
        tensor.host.view(dtype).as<float>()[i] = value;
      } else {
        tensor.host.view(dtype).as<atoll::bfloat16>()[i] = atoll::to_bfloat16(value);
      }
    }
    push(tensor);
    return tensor;
  }
  // Like random(), but the GPU memory after the tensor contains NaN, so that reads past the end of
  // the tensor show in the results.
  Tensor random_before_nan(atoll::DType dtype, std::int64_t count) {
    Tensor tensor = random(dtype, count);
    constexpr std::size_t behind = 64 << 10;
    const std::size_t bytes = tensor.gpu.bytes();
    auto whole = std::make_shared<atoll::Buffer>(gpu_.allocate(bytes + behind));
    cudaMemsetAsync(whole->data(), 0xff, whole->bytes(), stream());
    tensor.gpu = atoll::Buffer(std::shared_ptr<void>(whole, whole->data()), bytes);
    push(tensor);
    return tensor;
  }
  Tensor ids(std::int64_t count, std::int32_t lowest, std::int32_t below) {
    Tensor tensor = zeros(atoll::DType::i32, count);
    std::uniform_int_distribution<std::int32_t> uniform(lowest, below - 1);
    std::generate_n(tensor.host.view(atoll::DType::i32).as<std::int32_t>(), count,
                    [&] { return uniform(random_); });
    push(tensor);
    return tensor;
  }

  void push(const Tensor& tensor) {
    on_gpu_.copy(tensor.gpu.data(), tensor.host.data(), tensor.host.bytes());
    on_gpu_.synchronize();
  }
  // Returns the largest difference between the two copies, relative to 1 + the larger absolute
  // value.
  double difference(const Tensor& tensor) {
    const std::vector<std::byte> seen = bytes(tensor);
    on_host_.synchronize();
    double most = 0;
    for (std::uint64_t i = 0; i < tensor.on_host().count; ++i) {
      const double a = value(seen.data(), tensor.dtype, i);
      const double b = value(tensor.host.data(), tensor.dtype, i);
      if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
      most = std::max(most, std::abs(a - b) / (1 + std::max(std::abs(a), std::abs(b))));
    }
    return most;
  }
  std::vector<std::byte> bytes(const Tensor& tensor) {
    std::vector<std::byte> seen(tensor.gpu.bytes());
    on_gpu_.copy(seen.data(), tensor.gpu.data(), seen.size());
    on_gpu_.synchronize();
    return seen;
  }

  // Calls work(operations, stream, on) for the GPU and for the host, each with its operations;
  // on(tensor) returns the view of the tensor on that device.
  template <class Operations, class Work>
  void run(Operations& there, Operations& here, const Work& work) {
    work(there, on_gpu_, [](const Tensor& tensor) { return tensor.on_gpu(); });
    work(here, on_host_, [](const Tensor& tensor) { return tensor.on_host(); });
  }
  template <class Work>
  void run(train::Ops& there, const Work& work) {
    run<train::Ops>(there, *ops_, work);
  }

  static double value(const void* data, atoll::DType dtype, std::uint64_t i) {
    if (dtype == atoll::DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == atoll::DType::f64) return static_cast<const double*>(data)[i];
    return to_float(static_cast<const atoll::bfloat16*>(data)[i]);
  }

  cudaStream_t stream() { return static_cast<cudaStream_t>(on_gpu_.backend().native()); }
  atoll::Stream& host_stream() { return on_host_; }
  train::Ops& ops() { return *ops_; }
  atoll::Stream& gpu_stream() { return on_gpu_; }
  const atoll::Device& gpu() const { return gpu_; }

 private:
  atoll::Device gpu_ = atoll::Device::cuda(0), host_ = atoll::Device::cpu();
  atoll::Stream on_gpu_ = gpu_.stream(), on_host_ = host_.stream();
  std::unique_ptr<train::Ops> ops_ = train::cpu::make_ops({.threads = 4});
  std::mt19937 random_{7};
};

// Returns the allowed difference: bf16 has 8 bits of precision, and both devices sum thousands of
// f32 values in different orders.
inline double allowed(atoll::DType dtype) { return dtype == atoll::DType::bf16 ? 1e-2 : 2e-5; }
inline constexpr atoll::DType computes[] = {atoll::DType::f32, atoll::DType::bf16};

}  // namespace atoll_test
