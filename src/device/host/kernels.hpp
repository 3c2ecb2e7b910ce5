// CPU kernels, dispatched at run time to the best instruction set. Synchronous; memory of this
// host.
#pragma once

#include <span>

#include "device/ops.hpp"

namespace atoll_v1::atoll::host {

// Between f32, bf16, f16 and f64, round to nearest even.
void cast(View dst, ConstView src);
void add(View dst, ConstView src);
// dst[i] = op over parts[p][i], in the order of an adjacent-pair tree over the parts: 0 and 1, 2
// and 3, ..., then pairs of those, an odd last one carried up. 16-bit types are summed in f32 and
// rounded once; avg divides before that rounding (integers truncate). dst may be one of the parts.
void reduce(View dst, std::span<const void* const> parts, ReduceOp op);

enum class Stores {
  cached,
  streaming,  // past the caches, for data that nobody reads soon
};

// The same into several places at once, with a factor for each part.
struct Reduction {
  std::span<void* const> dsts;
  std::span<const void* const> parts;
  const double* factors;  // by part; NULL: all 1. Of sum and avg on floating types
  std::uint64_t count;
  DType dtype;
  ReduceOp op;
  int divisor;  // of avg
  Stores stores;
  std::size_t block = 0;  // parts of an inner tree, in a row; 0: one tree over all
};
void reduce_into(const Reduction& reduction);
void copy(void* dst, const void* src, std::size_t bytes, Stores stores);

void sum_squares(double* out, const float* src, std::uint64_t count);
void adamw(const AdamWStep& step);
void sgd(const SgdStep& step);
void fill_normal(float* dst, std::uint64_t count, const NormalFill& fill);

}  // namespace atoll_v1::atoll::host
