// DeviceOps on a GPU: each of them a kernel launch or a few on the stream; clip_factor, on which
// updates depend, with a host function in front. Orders of sums and roundings are those of ../host,
// so that the figures of both can be compared bit by bit, but for the last digits of pow, log and
// cos.
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
  void add(Stream& stream, View dst, ConstView src) override;
  void scale(Stream& stream, View dst, ConstView src, double factor) override;
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override;
  void sum_squares(Stream& stream, View out, ConstView src) override;
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override;
  void adamw(Stream& stream, const AdamWStep& step) override;
  void sgd(Stream& stream, const SgdStep& step) override;
  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override;

 private:
  // Of a stream.
  struct Clip {
    // Host memory that its kernels see: 1 behind a host function that does not run where the stream
    // has failed. The kernel behind takes it back.
    std::shared_ptr<int> permit;
    std::shared_ptr<void> parts;  // of the norm
  };
  Clip clip_of(Stream& stream);

  int ordinal_;
  std::mutex mutex_;
  std::map<void*, Clip> clips_;  // by stream
};

}  // namespace atoll_v1::atoll::cuda
