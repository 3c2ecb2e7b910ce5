// Matrix products with oneDNN. Primitives are cached by shape.
#pragma once

#include <memory>

#include "model/cpu/bf16_product.hpp"
#include "model/ops.hpp"

namespace train::cpu {

enum class Bf16Arithmetic {
  // Uses oneDNN's bf16 kernels if the processor has AVX512-BF16, and otherwise converts to f32.
  automatic,
  avx512,  // bf16 kernels of oneDNN without AMX; otherwise as `automatic`
  convert  // converts operands to f32: any processor, at f32 speed
};

// Multiplies matrices. run() blocks and computes on `threads` threads, one of which is the caller.
// Only one thread may call it at a time.
class MatMul {
 public:
  MatMul(int threads, Bf16Arithmetic bf16);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  void run(const Product& product, const void* a, const void* b, void* c);

  // The instructions for bf16 products outside oneDNN, which one thread computes; none if f32
  // products are as fast. Limited by oneDNN's variable ONEDNN_MAX_CPU_ISA too.
  Bf16Instructions instructions() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Excludes AMX from oneDNN in this process, unless the user sets oneDNN's variable
// ONEDNN_MAX_CPU_ISA. Must precede every other use of oneDNN.
void leave_out_amx();

// True if the bits of a product may depend on the number of threads, because oneDNN lets threads
// sum parts of k: with AMX, and on processors without AVX-512. They are always equal for equal
// numbers of threads. Tiles that one thread computes would prevent it, but take a fifth longer
// without AVX-512.
bool bits_depend_on_threads(atoll::DType dtype);

// Peak FLOP/s of large oneDNN products in f32 or bf16, with weights in oneDNN's preferred layout,
// measured for about `seconds`. The denominator of MFU.
double matrix_peak_flops(atoll::DType dtype, int threads, double seconds = 0.5);

}  // namespace train::cpu
