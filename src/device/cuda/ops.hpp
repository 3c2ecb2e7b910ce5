// DeviceOps on a GPU. Each operation launches one or a few kernels on the stream; clip_factor also
// enqueues a host function first. Sums use the order and rounding of ../cpu, so results of CPU and
// GPU are equal to the bit, except for the last digits of pow, log and cos.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/ops.hpp"

namespace atoll_v1::atoll::cuda {

class CudaOps final : public DeviceOps {
 public:
  explicit CudaOps(int ordinal) : ordinal_(ordinal) {}
  void cast(Stream& stream, View dst, ConstView src) override;
  void dequantize(Stream& stream, View dst, ConstView blocks) override;
  void add(Stream& stream, View dst, ConstView src) override;
  void scale(Stream& stream, View dst, ConstView src, double factor) override;
  void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                 double factor) override;
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override;
  void sum_squares(Stream& stream, View out, ConstView src) override;
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override;
  void adamw(Stream& stream, const AdamWStep& step) override;
  void sgd(Stream& stream, const SgdStep& step) override;
  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override;

 private:
  // Memory of clip_factor() for one stream.
  struct Clip {
    // A flag in mapped CPU memory. A host function sets the flag to 1 unless the stream has
    // failed; the kernel reads the flag and resets it to 0. If the kernel reads 0, the clip factor
    // becomes NaN.
    std::shared_ptr<int> permit;
    std::shared_ptr<void> parts;  // partial results of the gradient norm
  };
  Clip clip_of(Stream& stream);

  int ordinal_;
  std::mutex mutex_;
  std::map<void*, Clip> clips_;  // one entry for each CUDA stream
};

}  // namespace atoll_v1::atoll::cuda
