// Ops on the streams of a GPU: matrix products by cuBLASLt, attention of bf16 by cuDNN where it is
// there, the kernels of this folder for the rest. Both libraries are looked for when they are first
// needed, so that the same build runs without them.
#pragma once

#include <memory>

#include "atoll/device.hpp"
#include "model/ops.hpp"

namespace train::cuda {

// Of a cuda device, whose memory is its scratch: as much as the largest shapes need, for as long as it
// lives; growing waits for the stream. Must live until the streams that it was used on have finished.
// Rows of norms have up to 8,192 elements, heads up to 256: more is an Error(unsupported).
// Throws Error(unsupported) in a build without CUDA, Error(not_found) without cuBLASLt.
std::unique_ptr<Ops> make_ops(const atoll::Device& device);

// Operations per second of the largest products that cuBLASLt does on this GPU, measured for about
// `seconds`: what MFU is a share of. f32 or bf16. Errors as above.
double matrix_peak_flops(const atoll::Device& device, atoll::DType dtype, double seconds = 0.5);

}  // namespace train::cuda
