// Matrix products on oneDNN, one cached primitive per shape.
#pragma once

#include <memory>

#include "atoll/view.hpp"
#include "model/product.hpp"

namespace train::cpu {

enum class Bf16Arithmetic {
  automatic,  // oneDNN's where the processor multiplies bf16 (AVX512-BF16), else `convert`
  convert     // operands become f32 first: any processor, at the speed of f32
};

// Whether this processor has AVX512-BF16 and oneDNN uses it.
bool native_bf16();

// Runs on the calling thread and `threads - 1` more, and returns when done. One caller at a time.
class MatMul {
 public:
  MatMul(int threads, Bf16Arithmetic bf16);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  void run(const Product& product, const void* a, const void* b, void* c);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Operations per second of the largest products that oneDNN does on this machine, measured for
// about `seconds` with weights in its own layout: what MFU is a share of. f32 or bf16.
double matrix_peak_flops(atoll::DType dtype, int threads, double seconds = 0.5);

}  // namespace train::cpu
