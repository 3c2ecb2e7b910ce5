// Attention of 16-bit types by cuDNN, one plan for each shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "model/ops.hpp"

namespace train::cuda {

// Made and called while its device is current.
class Attention {
 public:
  // Deterministic: sums of backward have one order, so that results have the same bits every time.
  // cuDNN keeps a matrix of scores for each head then, in place of a row, and packed rows are not
  // for it.
  explicit Attention(bool deterministic);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // 91800 for 9.18.0; 0: it is not there.
  std::size_t cudnn_version() const noexcept;

  // Memory of the device for what is enqueued next.
  using Scratch = std::function<void*(std::size_t bytes)>;

  // What both directions take for this shape; 0 for what cuDNN does not do. Shapes that come later
  // are done within this where cuDNN has a way to.
  std::size_t scratch_bytes(cudaStream_t stream, const AttentionShape& shape, atoll::DType dtype);

  // False, with nothing enqueued, for what cuDNN does not do: f32, shapes that it does not take in
  // both directions, tensors that begin at no multiple of 16 bytes, and anything where it is not
  // there (which the log says once). Logarithms of sums are as Ops has them, so that a direction
  // may be done elsewhere.
  bool forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch);
  bool backward(cudaStream_t stream, const AttentionBackward& args, const Scratch& scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cuda
