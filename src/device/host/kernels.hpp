// Synchronous CPU kernels on host memory, dispatched at run time to the best instruction set.
#pragma once

#include <span>

#include "device/ops.hpp"

namespace atoll_v1::atoll::host {

// Converts between f32, bf16, f16 and f64, rounding to nearest even.
void cast(View dst, ConstView src);
// dst[i] = op over all p of parts[p][i], in the order of an adjacent-pair tree: parts 0 and 1,
// parts 2 and 3 and so on are combined, then pairs of these results; an odd last operand moves up a
// level. 16-bit types are summed in f32 and rounded once. avg divides before that rounding; for
// integers the division truncates. dst may be one of the parts.
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
// Reduces parts that follow each other in memory into dst. `rule` gives op, factors, divisor,
// stores and block; its other members are ignored.
void reduce(View dst, ConstView parts, Reduction rule);
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

}  // namespace atoll_v1::atoll::host
