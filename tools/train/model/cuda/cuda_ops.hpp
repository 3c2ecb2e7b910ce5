// Ops on the streams of a GPU: matrix products by cuBLASLt, attention of bf16 by cuDNN where it is
// there, the kernels of this folder for the rest. Both libraries are looked for when they are first
// needed, so that the same build runs without them.
#pragma once

#include <memory>

#include "atoll/device.hpp"
#include "model/ops.hpp"

namespace train::cuda {

struct CudaOpsOptions {
  bool deterministic =
      false;  // the one sum of no fixed order, in cuDNN's backward attention, has one
};

// Throws what make_ops() would: Error(unsupported) in a build without CUDA and for GPUs that the
// kernels do not fit, Error(not_found) without cuBLASLt.
void check_usable(const atoll::Device& device);

// Of a cuda device, whose memory is its scratch: as much as the largest shapes need, for as long as
// it lives; growing waits for the stream. Must live until the streams that it was used on have
// finished. Rows of norms have up to 8,192 elements, heads up to 256: more is an
// Error(unsupported).
std::unique_ptr<Ops> make_ops(const atoll::Device& device, const CudaOpsOptions& options = {});

// Operations per second of the largest products that cuBLASLt does on this GPU, measured for about
// `seconds`: what MFU is a share of. f32 or bf16. Errors as above.
double matrix_peak_flops(const atoll::Device& device, atoll::DType dtype, double seconds = 0.5);

}  // namespace train::cuda
