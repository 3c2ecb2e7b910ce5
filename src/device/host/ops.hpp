// DeviceOps on the CPU: each operation is one task of the stream.
#pragma once

#include "device/ops.hpp"

namespace atoll_v1::atoll::host {

class HostOps final : public DeviceOps {
 public:
  void cast(Stream& stream, View dst, ConstView src) override;
  void add(Stream& stream, View dst, ConstView src) override;
  void scale(Stream& stream, View dst, ConstView src, double factor) override;
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override;
  void sum_squares(Stream& stream, View out, ConstView src) override;
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override;
  void adamw(Stream& stream, const AdamWStep& step) override;
  void sgd(Stream& stream, const SgdStep& step) override;
  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override;
};

}  // namespace atoll_v1::atoll::host
