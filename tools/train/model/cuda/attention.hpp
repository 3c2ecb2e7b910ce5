// Attention of 16-bit types by cuDNN, one plan for each shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "model/ops.hpp"

namespace train::cuda {

// Made and called while its device is current. Sums of backward have one order, so results have the
// same bits every time.
class Attention {
 public:
  Attention();
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Memory of the device for what is enqueued next.
  using Scratch = std::function<void*(std::size_t bytes)>;

  // False, with nothing enqueued, for what cuDNN does not do: f32, shapes that it does not take, and
  // anything where it is not there (which the log says once).
  bool forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch);
  bool backward(cudaStream_t stream, const AttentionBackward& args, const Scratch& scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cuda
