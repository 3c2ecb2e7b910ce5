// Ops for GPU streams: cuBLASLt for matrix products, cuDNN for bf16 attention if present, and the
// kernels of this folder for the rest. Both libraries are loaded on first use, so one build runs
// with and without them.
#pragma once

#include <memory>

#include "atoll/device.hpp"
#include "model/ops.hpp"

namespace train::cuda {

struct CudaOpsOptions {
  // Fixes the order of the sums in cuDNN's backward attention. All other sums always have a fixed
  // order.
  bool deterministic = false;
  // Computes groups of linear layers (LinearsForward, LinearsBackward) with products in 8-bit
  // floating point (fp8_linears.hpp). Needs compute capability 9.0 (H100) or later.
  bool fp8 = false;
};

// Throws like make_ops(): Error(unsupported) in a build without CUDA or for a GPU that the kernels
// do not support, Error(not_found) without cuBLASLt.
void check_usable(const atoll::Device& device);

// Makes Ops for a cuda device. They keep scratch memory on it, as much as the largest shape needs;
// growing it waits for the stream. Must outlive work on the streams that they served. Norm rows may
// have at most 8,192 elements and heads at most 256; more raises Error(unsupported). So does fp8 on
// a GPU without it.
std::unique_ptr<Ops> make_ops(const atoll::Device& device, const CudaOpsOptions& options = {});

// Peak FLOP/s of large cuBLASLt products in f32 or bf16, measured for about `seconds`. The
// denominator of MFU. Throws like make_ops().
double matrix_peak_flops(const atoll::Device& device, atoll::DType dtype, double seconds = 0.5);

}  // namespace train::cuda
