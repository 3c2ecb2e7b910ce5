// Matrix products on cuBLASLt, one algorithm for each shape, chosen when it is first seen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "atoll/device.hpp"
#include "model/product.hpp"

namespace train::cuda {

// f32 is f32 throughout, not TF32. Sums that are split over blocks are put together in one order,
// so results have the same bits every time on one GPU and version of cuBLAS.
class MatMul {
 public:
  static constexpr std::size_t workspace_bytes = std::size_t{32}
                                                 << 20;  // as NVIDIA advises for sm_90

  // Throws Error(not_found) without cuBLASLt.
  static void find_library();
  explicit MatMul(const atoll::Device& device);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  // Enqueued; the device is current. One stream at a time, as they share a workspace. With a
  // residual, as large as c and of its dtype: c = a b + residual.
  void run(cudaStream_t stream, const Product& product, const void* a, const void* b, void* c,
           const void* residual = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cuda
