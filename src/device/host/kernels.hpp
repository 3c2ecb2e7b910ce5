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
void sum_squares(double* out, const float* src, std::uint64_t count);
void adamw(const AdamWStep& step);
void sgd(const SgdStep& step);
void fill_normal(float* dst, std::uint64_t count, const NormalFill& fill);

}  // namespace atoll_v1::atoll::host
