// Linear layers of bf16 matrices whose products are in fp8.
//
// Inputs and weights are e4m3, gradients of outputs e5m2, which has the wider range. Every matrix
// gets its scale from its own largest value when it is used, so no state is kept between steps.
// Results are bf16, and gradients of weights f32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "model/cuda/matmul.hpp"
#include "model/ops.hpp"

namespace train::cuda {

// Bytes of scratch memory for a group of layers.
std::size_t fp8_scratch(const LinearsForward& args);
std::size_t fp8_scratch(const LinearsBackward& args);
// Bytes of scratch memory that the largest group of layers of the model needs.
std::size_t fp8_scratch(const LargestShapes& shapes);

// Enqueue the group. Throw Error(unsupported) unless all matrices are bf16, extents are multiples
// of fp8_granularity, and addresses are multiples of 16 bytes. `scratch` has fp8_scratch() bytes,
// aligned to 256, and is in use until the work has run.
void fp8_linears_forward(cudaStream_t stream, MatMul& matmul, const LinearsForward& args,
                         void* scratch);
void fp8_linears_backward(cudaStream_t stream, MatMul& matmul, const LinearsBackward& args,
                          void* scratch);

}  // namespace train::cuda
