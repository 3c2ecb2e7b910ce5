// The kernels of another device, each of which says first what it reads and writes.
#pragma once

#include "device/ops.hpp"

namespace atoll_v1::atoll::checked {

class CheckedOps final : public DeviceOps {
 public:
  explicit CheckedOps(DeviceOps& inner) : inner_(inner) {}
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
  DeviceOps& inner_;
};

}  // namespace atoll_v1::atoll::checked
