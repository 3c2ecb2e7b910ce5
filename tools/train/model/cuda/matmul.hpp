// Matrix products with cuBLASLt. The algorithm of each shape is cuBLASLt's first choice.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "atoll/device.hpp"
#include "model/cuda/fp8.hpp"
#include "model/ops.hpp"

namespace train::cuda {

// f32 products use no TF32. Split sums are combined in a fixed order, so results are bitwise
// reproducible on one GPU model and cuBLAS version.
class MatMul {
 public:
  // Size of the workspace in bytes, as NVIDIA recommends for sm_90.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  // Throws Error(not_found) without cuBLASLt.
  static void find_library();
  explicit MatMul(const atoll::Device& device);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  // Enqueues the product; the device must be current. Products share a workspace, so use one stream
  // at a time. With a residual of c's size and dtype: c = a b + residual.
  void run(cudaStream_t stream, const Product& product, const void* a, const void* b, void* c,
           const void* residual = nullptr);

  // An operand in fp8, aligned to 16 bytes; its values times *inverse, which is device memory, are
  // the matrix.
  struct Fp8Operand {
    const void* data;
    const float* inverse;
    Fp8 format;
  };
  // Like run() for a [m, k] and a transposed b [n, k]; `product.in` is not read. m, n and k are
  // multiples of fp8_granularity, and at most one operand is e5m2. If neither is, tensor cores may
  // sum with 14 bits instead of those of f32 (CUBLASLT_MATMUL_DESC_FAST_ACCUM); training of
  // Transformer Engine sums forward in this way too.
  void run(cudaStream_t stream, const Product& product, const Fp8Operand& a, const Fp8Operand& b,
           void* c, const void* residual = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cuda
