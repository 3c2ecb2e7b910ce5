#include "device/host/ops.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/assert.hpp"
#include "device/exact_sum.hpp"
#include "device/host/kernels.hpp"

namespace atoll_v1::atoll::host {

namespace {

class HostOps final : public DeviceOps {
 public:
  void cast(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count, "cast: counts differ");
    stream.enqueue([=] { host::cast(dst, src); });
  }

  void add(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "add: views differ");
    stream.enqueue([=] { host::add(dst, src); });
  }

  void scale(Stream& stream, View dst, ConstView src, double factor) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "scale: views differ");
    stream.enqueue([dst, src, factor] {
      void* const to = dst.data;
      const void* const from = src.data;
      host::reduce_into({{&to, 1},
                         {&from, 1},
                         &factor,
                         src.count,
                         src.dtype,
                         ReduceOp::sum,
                         1,
                         host::Stores::cached});
    });
  }

  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override {
    ATOLL_ASSERT(dst.count == 0 || parts.count % dst.count == 0, "reduce: parts are not whole");
    stream.enqueue([=] {
      if (dst.count == 0) return;
      std::vector<const void*> pointers;
      for (std::uint64_t first = 0; first < parts.count; first += dst.count) {
        pointers.push_back(parts.part(first, dst.count).data);
      }
      void* const to = dst.data;
      host::reduce_into({{&to, 1},
                         pointers,
                         nullptr,
                         dst.count,
                         dst.dtype,
                         op,
                         static_cast<int>(pointers.size()),
                         host::Stores::cached,
                         static_cast<std::size_t>(block)});
    });
  }

  void sum_squares(Stream& stream, View out, ConstView src) override {
    ATOLL_ASSERT(out.dtype == DType::f64 && src.dtype == DType::f32 &&
                     out.count == (src.count + norm_block - 1) / norm_block,
                 "sum_squares: one f64 for each block of f32");
    stream.enqueue([=] { host::sum_squares(out.as<double>(), src.as<float>(), src.count); });
  }

  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override {
    ATOLL_ASSERT(result.count == 3 && result.dtype == DType::f64 && blocks.dtype == DType::f64,
                 "clip_factor: f64 blocks in, norm, factor and steps (f64) out");
    stream.enqueue([=] {
      const double norm = std::sqrt(exact_sum({blocks.as<double>(), blocks.count}));
      const auto limit = static_cast<double>(rule.max_norm);
      double factor = limit > 0 && norm > limit ? limit / norm : 1.0;
      if (!std::isfinite(norm)) factor = rule.skip_nonfinite ? std::nan("") : 1.0;
      result.as<double>()[0] = norm;
      result.as<double>()[1] = factor;
      if (!std::isnan(factor)) result.as<double>()[2] += 1.0;
    });
  }

  void adamw(Stream& stream, const AdamWStep& step) override {
    stream.enqueue([=] { host::adamw(step); });
  }

  void sgd(Stream& stream, const SgdStep& step) override {
    stream.enqueue([=] { host::sgd(step); });
  }

  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override {
    ATOLL_ASSERT(dst.dtype == DType::f32, "fill_normal: f32 only");
    stream.enqueue([=] { host::fill_normal(dst.as<float>(), dst.count, fill); });
  }
};

}  // namespace

std::unique_ptr<DeviceOps> make_ops() { return std::make_unique<HostOps>(); }

}  // namespace atoll_v1::atoll::host
