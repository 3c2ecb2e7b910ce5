// The host device: memory of the CPU, streams with worker threads, and kernels as tasks of a
// stream.
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "atoll/error.hpp"
#include "core/assert.hpp"
#include "core/limits.hpp"
#include "device/backend.hpp"
#include "device/exact_sum.hpp"
#include "device/host/kernels.hpp"
#include "device/host/stream.hpp"
#include "device/int8_blocks.hpp"

namespace atoll_v1::atoll {
namespace host {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t round_up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

std::uint64_t memory_of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return 0;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
}

class HostOps final : public DeviceOps {
 public:
  void cast(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count, "cast: counts differ");
    stream.enqueue([=] { host::cast(dst, src); });
  }

  void dequantize(Stream& stream, View dst, ConstView blocks) override {
    ATOLL_ASSERT(blocks.bytes() == int8_bytes(dst.count), "dequantize: sizes differ");
    stream.enqueue([=] { host::dequantize(dst, blocks.data); });
  }

  void add(Stream& stream, View dst, ConstView src) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "add: views differ");
    stream.enqueue([=] {
      const std::array<const void*, 2> parts = {dst.data, src.data};
      host::reduce(dst, parts, ReduceOp::sum);
    });
  }

  void scale(Stream& stream, View dst, ConstView src, double factor) override {
    ATOLL_ASSERT(dst.count == src.count && dst.dtype == src.dtype, "scale: views differ");
    stream.enqueue([dst, src, factor] { host::reduce(dst, src, {.factors = &factor}); });
  }

  void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                 double factor) override {
    ATOLL_ASSERT(dst.count == grid.rows * grid.columns * grid.count, "pack_rows: sizes differ");
    stream.enqueue([=] { host::pack_rows(dst, src, grid, factor); });
  }

  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override {
    ATOLL_ASSERT(dst.count == 0 || parts.count % dst.count == 0, "reduce: parts of unequal size");
    stream.enqueue(
        [=] { host::reduce(dst, parts, {.op = op, .block = static_cast<std::size_t>(block)}); });
  }

  void sum_squares(Stream& stream, View out, ConstView src) override {
    ATOLL_ASSERT(out.dtype == DType::f64 && src.dtype == DType::f32 &&
                     out.count == (src.count + norm_block - 1) / norm_block,
                 "sum_squares: src must be f32, and out must have one f64 for each norm block");
    stream.enqueue([=] { host::sum_squares(out.as<double>(), src.as<float>(), src.count); });
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

class HostDevice final : public DeviceBackend {
 public:
  HostDevice() : DeviceBackend({.name = "host", .memory_bytes = memory_of_machine()}) {}

  void* allocate(std::size_t bytes) override {
    require_free_memory(bytes);
    void* data = std::aligned_alloc(page, round_up(bytes));
    if (data) return data;
    throw Error(ErrorCode::out_of_memory,
                "host memory: cannot allocate " + std::to_string(bytes) + " bytes");
  }
  void deallocate(void* data, std::size_t) noexcept override { std::free(data); }
  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override {
    return std::make_unique<HostStream>(options);
  }
  DeviceOps& ops() noexcept override { return ops_; }

 private:
  HostOps ops_;
};

}  // namespace
}  // namespace host

Device Device::host() { return Device(std::make_shared<host::HostDevice>()); }

}  // namespace atoll_v1::atoll
