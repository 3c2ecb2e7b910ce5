// The kernels that the library itself needs, one implementation per kind of device. All are
// enqueued on the stream and return at once. Counts must agree unless said; views are of the
// stream's device.
#pragma once

#include <cstdint>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Sums of squares are taken in f64 over fixed blocks of this many elements, so that a norm does not
// depend on how the elements are sharded. Shard boundaries are multiples of it.
inline constexpr std::uint64_t norm_block = 4096;

struct AdamWStep {
  View weights;           // f32 master shard
  ConstView gradient;     // f32
  View moment1, moment2;  // f32, or both bf16
  View weights_low;       // optional bf16 copy of the weights; count 0: none
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  const double* steps;  // device address of t, this step included, for the corrections 1 - beta^t
  const double* scale;  // device address of a factor of the gradient; nullptr: 1; NaN: no step
  // bf16 moments are rounded up or down by chance, with the odds of what is cut off: to the
  // nearest, what changes a moment by less than 2^-9 of it is lost, and 1 - beta2 is less than
  // that. Chance is a function of key, step and first + i, whatever the shard. Key 0: to the
  // nearest.
  std::uint64_t key = 0;
  std::uint64_t first = 0;  // index of weights[0] in the whole
};

struct SgdStep {
  View weights;
  ConstView gradient;
  View weights_low;
  float learning_rate, weight_decay;
  const double* scale;
};

// Element i of the tensor gets mean + deviation * normal(seed, stream, first + i): a function of
// its arguments alone, whatever the shard.
struct NormalFill {
  std::uint64_t seed;
  std::uint64_t stream;  // hash of the parameter's name
  std::uint64_t first;   // index in the tensor of dst[0]
  float mean, deviation;
};

// The factor that a norm gives: min(1, max_norm / norm), 1 when max_norm is 0. When the norm is not
// finite: NaN, or 1 unless such steps are skipped.
struct ClipRule {
  float max_norm = 0;
  bool skip_nonfinite = true;
};

class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  // Between f32, bf16, f16, f64; round to nearest even. src = dst is allowed when dtypes are equal.
  virtual void cast(Stream& stream, View dst, ConstView src) = 0;
  virtual void add(Stream& stream, View dst, ConstView src) = 0;  // dst += src; f32, f64
  // dst = factor * src, in f64 or, of the other floating types, in f32, rounded once. dst may be
  // src.
  virtual void scale(Stream& stream, View dst, ConstView src, double factor) = 0;
  // dst[i] = op over p of parts[p * dst.count + i]; order and rounding as in atoll_host.reduce.
  // With a block a tree over each `block` neighbouring parts, then one over those.
  virtual void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) = 0;
  // out[b] = sum of squares of block b of src (f32); out is f64, ceil(src.count / norm_block) long.
  virtual void sum_squares(Stream& stream, View out, ConstView src) = 0;
  // result (f64, 3 elements): the norm sqrt(sum of `blocks`, as exact_sum.hpp); the factor; and the
  // number of steps, which grows by one unless the factor is NaN. On a stream that has failed,
  // where the kernels of a GPU run all the same, the factor is NaN: updates behind it change
  // nothing.
  virtual void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) = 0;
  virtual void adamw(Stream& stream, const AdamWStep& step) = 0;
  virtual void sgd(Stream& stream, const SgdStep& step) = 0;
  virtual void fill_normal(Stream& stream, View dst, const NormalFill& fill) = 0;  // f32
};

}  // namespace atoll_v1::atoll
