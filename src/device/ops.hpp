// The kernels that the library itself needs, with one implementation per kind of device. Each
// function enqueues its work on the stream and returns at once. Views must be on the device of the
// stream and have equal counts, unless the function says otherwise.
#pragma once

#include <cstdint>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Sums of squares are computed in f64 over fixed blocks of this many elements, so that a norm does
// not depend on the sharding. Shard boundaries are multiples of this number.
inline constexpr std::uint64_t norm_block = 4096;

// Rows of a source, in a grid: row (r, c) has the elements first + (r * columns + c) * stride and
// the `count - 1` elements behind it.
struct RowGrid {
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t count = 0;   // number of elements of each row
  std::uint64_t stride = 0;  // number of elements from one row to the next
  std::uint64_t first = 0;   // index of the first element of row (0, 0)
};

struct AdamWStep {
  View weights;           // master shard of the weights, in f32
  ConstView gradient;     // gradient shard, in f32
  View moment1, moment2;  // first and second moments; both f32 or both bf16
  View weights_low;       // optional bf16 copy of the weights; count 0 if there is no copy
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  // Device address of the number of steps t, this step included, for the bias corrections 1 -
  // beta^t.
  const double* steps;
  // Device address of a factor of the gradient. Null means 1; if the factor is NaN, nothing
  // changes.
  const double* scale;
  // Key of stochastic rounding for bf16 moments; 0 rounds to nearest. Rounding to nearest would
  // lose changes below 2^-9 of a moment, and 1 - beta2 is smaller. The random bits depend only on
  // the key, the step and the index first + i, so they do not depend on the sharding.
  std::uint64_t key = 0;
  std::uint64_t first = 0;  // index of weights[0] in the unsharded parameters
  // Maximum number of thread blocks on a GPU, each of which holds about one multiprocessor, so that
  // other streams have the others; 0 means no limit. CPUs ignore it.
  unsigned most_blocks = 0;
};

// Bytes per second that each thread block of an AdamWStep reads and writes while matrix products
// run on the other multiprocessors. Measured on an H100, with f32 moments and a limit by
// `most_blocks`. SgdStep is assumed to reach the same.
inline constexpr double bytes_per_s_of_block = 50e9;

struct SgdStep {
  View weights;
  ConstView gradient;
  View weights_low;
  float learning_rate, weight_decay;
  const double* scale;
  unsigned most_blocks = 0;  // maximum number of thread blocks, as for AdamWStep
};

// Element i is set to mean + deviation * normal(seed, stream, first + i), which does not depend on
// the sharding.
struct NormalFill {
  std::uint64_t seed;
  std::uint64_t stream;  // hash of the parameter's name
  std::uint64_t first;   // index of dst[0] in the unsharded tensor
  float mean, deviation;
};

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with good avalanche, from
// which kernels draw random bits.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Defines the factor of gradient clipping: gradient_scale * min(1, max_norm / norm), or
// gradient_scale if max_norm is 0. `norm` is the norm of the gradients times gradient_scale. If it
// is not finite, the factor is NaN if skip_nonfinite is true, and gradient_scale otherwise.
struct ClipRule {
  float max_norm = 0;
  bool skip_nonfinite = true;
  float gradient_scale = 1;
};

class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  // Converts between f32, bf16, f16 and f64, rounding to nearest even. src may equal dst if the
  // types are equal.
  virtual void cast(Stream& stream, View dst, ConstView src) = 0;
  // Converts blocks of 8-bit integers (int8_blocks.hpp) to f32, bf16 or f16. `blocks` is u8, with
  // int8_bytes(dst.count) bytes at an address that is a multiple of 4.
  virtual void dequantize(Stream& stream, View dst, ConstView blocks) = 0;
  virtual void add(Stream& stream, View dst, ConstView src) = 0;  // dst += src, for f32 and f64
  // dst = factor * src, computed in f64 for f64 and in f32 for the other floating types, and
  // rounded once. dst may equal src.
  virtual void scale(Stream& stream, View dst, ConstView src, double factor) = 0;
  // Copies the rows of the grid to dst, column by column: (0, 0), (1, 0), ..., (0, 1), (1, 1), ...
  // dst has the type of src, or is f32 and src is bf16 or f16. Multiplies floating-point elements
  // by `factor`, in the type of dst; for other types it must be 1.
  virtual void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                         double factor) = 0;
  // dst[i] = op over all p of parts[p * dst.count + i], with the order and rounding of
  // cpu::reduce_into (device/cpu/reduce.hpp). If `block` is not 0, one tree combines each run of
  // `block` parts, and a second tree combines the results. Supports all types except f8e4m3 and
  // f8e5m2. For a bf16 or f16 dst the parts may be f32; the result is rounded once.
  virtual void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) = 0;
  // out[b] = sum of squares of block b of src. src is f32; out is f64 with ceil(src.count /
  // norm_block) elements.
  virtual void sum_squares(Stream& stream, View out, ConstView src) = 0;
  // Writes three f64 values to result: the norm, which is ClipRule::gradient_scale times the square
  // root of the exact sum of `blocks`; the clip factor; and the number of steps, which grows unless
  // the factor is NaN. After a failure of the stream, kernels of a GPU still run, but the factor is
  // then NaN, so that optimizer steps that use it change nothing.
  virtual void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) = 0;
  virtual void adamw(Stream& stream, const AdamWStep& step) = 0;
  virtual void sgd(Stream& stream, const SgdStep& step) = 0;
  // Fills `dst`, which must be f32, with the random values that NormalFill describes.
  virtual void fill_normal(Stream& stream, View dst, const NormalFill& fill) = 0;
};

}  // namespace atoll_v1::atoll
