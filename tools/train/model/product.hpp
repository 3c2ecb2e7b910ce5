// Describes a matrix product for a math library, and the three products of a linear layer.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "atoll/error.hpp"
#include "model/ops.hpp"

namespace train {

enum class Operand {
  plain,
  transposed
};

// c [m, n] = a [m, k] b [k, n], or c += a b; row-major. A transposed operand is stored as [k, m] or
// [n, k]. a and b have dtype `in` (f32 or bf16), c has dtype `out`; sums are f32.
struct Product {
  std::int64_t m, n, k;
  Operand a, b;
  atoll::DType in, out;
  WriteMode mode;
  friend auto operator<=>(const Product&, const Product&) = default;
};

// Whether dtype is bf16 rather than f32. Throws Error(unsupported) for any other type.
inline bool is_bf16(atoll::DType dtype) {
  if (dtype == atoll::DType::bf16) return true;
  if (dtype == atoll::DType::f32) return false;
  throw atoll::Error(
      atoll::ErrorCode::unsupported,
      "matrix product in " + std::string(atoll::name(dtype)) + ": only f32 and bf16 are supported");
}

// y = x W^T
constexpr Product forward_product(LinearShape shape, atoll::DType in, atoll::DType out) {
  return {shape.tokens,        shape.out, shape.in, Operand::plain,
          Operand::transposed, in,        out,      WriteMode::overwrite};
}

// dx = dy W
constexpr Product dgrad_product(LinearShape shape, atoll::DType in, atoll::DType out,
                                WriteMode mode) {
  return {shape.tokens, shape.in, shape.out, Operand::plain, Operand::plain, in, out, mode};
}

// dW = dy^T x
constexpr Product wgrad_product(LinearShape shape, atoll::DType in, atoll::DType out,
                                WriteMode mode) {
  return {shape.out, shape.in, shape.tokens, Operand::transposed, Operand::plain, in, out, mode};
}

}  // namespace train
