// 16-bit attention with cuDNN. Plans are cached by shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "model/ops.hpp"

namespace train::cuda {

// The GPU must be the current CUDA device when an object is constructed and when it is called.
class Attention {
 public:
  // If `deterministic`, backward sums in a fixed order and results are bitwise reproducible. cuDNN
  // then needs a matrix of scores per head instead of a row, and does not support packed rows.
  explicit Attention(bool deterministic);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Version of the loaded cuDNN, for example 91800 for 9.18.0; 0 if cuDNN is absent.
  std::size_t cudnn_version() const noexcept;

  // Returns device memory that the work enqueued next may use; later work may use it again.
  using Scratch = std::function<void*(std::size_t bytes)>;

  // Scratch bytes that forward and backward need for this shape; 0 if cuDNN does not support it.
  // Later shapes use plans that fit this scratch where cuDNN has any.
  std::size_t scratch_bytes(cudaStream_t stream, const AttentionShape& shape, atoll::DType dtype);

  // Returns false and enqueues nothing if cuDNN cannot compute it: f32, a shape not supported in
  // both directions, tensors not aligned to 16 bytes, or cuDNN absent (logged once). The lse layout
  // matches Ops, so another implementation may compute the other direction.
  bool forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch);
  bool backward(cudaStream_t stream, const AttentionBackward& args, const Scratch& scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cuda
