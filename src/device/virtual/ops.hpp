// The kernels of the library on a virtual device. Each takes the time of the bytes that it reads
// and writes at the bandwidth of the memory.
#pragma once

#include "atoll/simulated.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll::simulated {

// Returns the rate of a kernel of the library in bytes per second.
double kernel_rate(const DeviceOptions& options, const char* name);

class VirtualOps final : public DeviceOps {
 public:
  // `options` must outlive this object.
  explicit VirtualOps(const DeviceOptions& options) : options_(options) {}
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
  void move(Stream& stream, const char* name, std::uint64_t bytes) const;
  void move_in_blocks(Stream& stream, const char* name, std::uint64_t bytes, unsigned blocks) const;
  const DeviceOptions& options_;
};

}  // namespace atoll_v1::atoll::simulated
