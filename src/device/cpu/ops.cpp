// DeviceOps on CPUs: each operation is one task of its stream.
#include <array>
#include <cmath>
#include <memory>

#include "core/assert.hpp"
#include "device/backend.hpp"
#include "device/cpu/kernels.hpp"
#include "device/exact_sum.hpp"
#include "device/int8_blocks.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll::cpu {
namespace {

class CpuOps final : public DeviceOps {
 public:
  void cast(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count, "cast: counts differ");
    stream.enqueue([=] { cpu::cast(dst, src); });
  }

  void dequantize(Stream& stream, View dst, ConstView blocks) override {
    ATOLL_ASSERT(blocks.bytes() == int8_bytes(dst.count), "dequantize: sizes differ");
    stream.enqueue([=] { cpu::dequantize(dst, blocks.data); });
  }

  void add(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "add: views differ");
    stream.enqueue([=] {
      const std::array<const void*, 2> parts = {dst.data, src.data};
      cpu::reduce(dst, parts, ReduceOp::sum);
    });
  }

  void scale(Stream& stream, View dst, ConstView src, double factor) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "scale: views differ");
    stream.enqueue([dst, src, factor] { cpu::reduce(dst, src, {.factors = &factor}); });
  }

  void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                 double factor) override {
    ATOLL_ASSERT(dst.count == grid.rows * grid.columns * grid.count, "pack_rows: sizes differ");
    stream.enqueue([=] { cpu::pack_rows(dst, src, grid, factor); });
  }

  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override {
    ATOLL_ASSERT(dst.count == 0 || parts.count % dst.count == 0, "reduce: parts of unequal size");
    stream.enqueue(
        [=] { cpu::reduce(dst, parts, {.op = op, .block = static_cast<std::size_t>(block)}); });
  }

  void sum_squares(Stream& stream, View out, ConstView src) override {
    ATOLL_ASSERT(out.dtype == DType::f64 && src.dtype == DType::f32 &&
                     out.count == (src.count + norm_block - 1) / norm_block,
                 "sum_squares: src must be f32, and out must have one f64 for each norm block");
    stream.enqueue([=] { cpu::sum_squares(out.as<double>(), src.as<float>(), src.count); });
  }

  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override {
    ATOLL_ASSERT(result.count == 3 && result.dtype == DType::f64 && blocks.dtype == DType::f64,
                 "clip_factor: blocks must be f64, and result must have three f64");
    stream.enqueue([=] {
      const auto scale = static_cast<double>(rule.gradient_scale);
      const double norm = scale * std::sqrt(exact_sum({blocks.as<double>(), blocks.count}));
      const auto limit = static_cast<double>(rule.max_norm);
      double factor = limit > 0 && norm > limit ? scale * (limit / norm) : scale;
      if (!std::isfinite(norm)) factor = rule.skip_nonfinite ? std::nan("") : scale;
      result.as<double>()[0] = norm;
      result.as<double>()[1] = factor;
      if (!std::isnan(factor)) result.as<double>()[2] += 1.0;
    });
  }

  void adamw(Stream& stream, const AdamWStep& step) override {
    stream.enqueue([=] { cpu::adamw(step); });
  }

  void sgd(Stream& stream, const SgdStep& step) override {
    stream.enqueue([=] { cpu::sgd(step); });
  }

  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override {
    ATOLL_ASSERT(dst.dtype == DType::f32, "fill_normal: f32 only");
    stream.enqueue([=] { cpu::fill_normal(dst.as<float>(), dst.count, fill); });
  }
};

}  // namespace

std::unique_ptr<DeviceOps> make_ops() { return std::make_unique<CpuOps>(); }

}  // namespace atoll_v1::atoll::cpu
