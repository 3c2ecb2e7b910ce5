// Synchronous CPU kernels on CPU memory, dispatched at run time to the best instruction set.
#pragma once

#include <bit>
#include <cstddef>
#include <span>

#include "device/ops.hpp"

namespace atoll_v1::atoll::cpu {

// Converts between f32, bf16, f16 and f64, rounding to nearest even.
void cast(View dst, ConstView src);
// dst[i] = op over all p of parts[p][i], in the order of an adjacent-pair tree: parts 0 and 1,
// parts 2 and 3 and so on are combined, then pairs of these results; an odd last operand moves up a
// level. 16-bit types are combined in f32 and rounded once. Sums and products of integers wrap
// around. avg divides before the rounding; for integers the division truncates. dst may be one of
// the parts.
void reduce(View dst, std::span<const void* const> parts, ReduceOp op);

enum class Stores {
  cached,
  streaming,  // uses non-temporal stores, for data that is not read soon
};

// A reduction that writes several destinations and may multiply each part with a factor.
struct Reduction {
  std::span<void* const> dsts{};
  std::span<const void* const> parts{};
  const double* factors =
      nullptr;  // one factor per part; null means all are 1. Only for sum and avg of floating types
  std::uint64_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 0;  // avg divides the sum by this number; 0 means the number of parts
  Stores stores = Stores::cached;
  std::size_t block = 0;  // consecutive parts per inner tree; 0 means one tree over all parts
};
void reduce_into(const Reduction& reduction);
// reduce_into() calls this function for all products, and for the types of is_plain().
void reduce_plain(const Reduction& reduction);
// Returns true for the integer types that are reduced by plain loops instead of vector code.
constexpr bool is_plain(DType dtype) {
  return dtype == DType::i8 || dtype == DType::u16 || dtype == DType::u32 || dtype == DType::u64;
}
// Returns the number of parts in the left half of a tree over n parts. If `block` is not 0, each
// run of `block` consecutive parts forms one subtree.
constexpr std::size_t left_of(std::size_t n, std::size_t block) {
  return block == 0 || n <= block ? std::bit_floor(n - 1) : std::bit_floor(n / block - 1) * block;
}
// Reduces parts that follow each other in memory into dst. `rule` gives op, factors, divisor,
// stores and block; its other members are ignored. For a bf16 or f16 dst the parts may be f32; the
// result is rounded once.
void reduce(View dst, ConstView parts, Reduction rule);
void pack_rows(View dst, ConstView src, const RowGrid& grid, double factor);
void copy(void* dst, const void* src, std::size_t bytes, Stores stores);

void sum_squares(double* out, const float* src, std::uint64_t count);
// Factors of one AdamW step that are equal for all elements.
struct AdamWFactors {
  float scale;  // factor of the gradient
  float keep;   // factor of the weight, 1 - learning rate * weight decay
  float rate;   // learning rate / bias correction of the first moment
  float root;   // 1 / sqrt(bias correction of the second moment)
};
void adamw(const AdamWStep& step);
void sgd(const SgdStep& step);
void fill_normal(float* dst, std::uint64_t count, const NormalFill& fill);

}  // namespace atoll_v1::atoll::cpu
