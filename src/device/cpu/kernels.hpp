// Synchronous CPU kernels on CPU memory, dispatched at run time to the best instruction set.
#pragma once

#include <memory>
#include <span>

#include "device/cpu/reduce.hpp"
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

// Reduces parts that follow each other in memory into dst. `rule` gives op, factors, divisor,
// stores and block; its other members are ignored. For a bf16 or f16 dst the parts may be f32; the
// result is rounded once.
void reduce(View dst, ConstView parts, Reduction rule);
void pack_rows(View dst, ConstView src, const RowGrid& grid, double factor);

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

// Makes the operations of the CPU device, which call these kernels in tasks of a stream (ops.cpp).
std::unique_ptr<DeviceOps> make_ops();

}  // namespace atoll_v1::atoll::cpu
