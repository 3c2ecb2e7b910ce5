// Conversion of bf16 matrices to 8-bit floating point (fp8), one scale for each matrix.
//
// A matrix is multiplied by a power of two, chosen from its largest absolute value, and rounded to
// nearest even. Values that are then far below the format's smallest number become 0. A matrix with
// an infinity or NaN has the factor NaN, and so has every product with it. The formats are those of
// "FP8 formats for deep learning" (arXiv 2209.05433).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "atoll/view.hpp"

namespace train::cuda {

enum class Fp8 : std::uint8_t {
  e4m3,  // 4 bits of exponent, 3 of mantissa: up to 448, smallest number 2^-9
  e5m2   // 5 bits of exponent, 2 of mantissa: up to 57344, smallest number 2^-16
};

// The scale of a matrix, in device memory. Set it to zeros before find_largest().
struct alignas(8) Fp8Scale {
  std::uint32_t largest;  // the bits of the largest absolute value, which is a bf16
  float inverse;          // converted values times this are the matrix again
};

// Extents of matrices are multiples of this, as cuBLASLt's products in fp8 require.
inline constexpr std::int64_t fp8_granularity = 16;

// Finds the largest absolute value of each matrix, for the scale with the same index. The matrices
// are bf16 and aligned to 16 bytes; empty ones are passed over. One kernel for up to 8 matrices.
void find_largest(cudaStream_t stream, std::span<const atoll::ConstView> matrices,
                  Fp8Scale* scales);

// Converts x by the scale for which find_largest() was called, and stores scale->inverse.
struct Fp8Copies {
  atoll::ConstView x;          // bf16 [rows, columns], aligned to 16 bytes
  std::int64_t rows, columns;  // multiples of fp8_granularity
  Fp8 format;
  Fp8Scale* scale;
  void* plain;                 // [rows, columns] in fp8; may be null if `transposed` is not
  void* transposed = nullptr;  // the transpose, [columns, rows]; null: not stored
};
void to_fp8(cudaStream_t stream, const Fp8Copies& args);

}  // namespace train::cuda
