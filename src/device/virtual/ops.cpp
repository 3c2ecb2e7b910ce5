#include "device/virtual/ops.hpp"

#include <algorithm>

namespace atoll_v1::atoll::simulated {

double kernel_rate(const DeviceOptions& options, const char* name) {
  const auto found = options.kernel_gbyte_s.find(std::string_view(name));
  return 1e9 * (found == options.kernel_gbyte_s.end() ? options.memory_gbyte_s : found->second);
}

void VirtualOps::move(Stream& stream, const char* name, std::uint64_t bytes) const {
  run(stream, {.name = name,
               .seconds = static_cast<double>(bytes) / kernel_rate(options_, name),
               .use = {.compute = 1, .memory = 1}});
}

// Enqueues a kernel of few blocks, each of which holds a compute unit. Without units, as on CPUs,
// the number of blocks has no effect.
void VirtualOps::move_in_blocks(Stream& stream, const char* name, std::uint64_t bytes,
                                unsigned blocks) const {
  if (blocks == 0 || options_.units == 0) return move(stream, name, bytes);
  const double whole = kernel_rate(options_, name);
  const double rate = std::min(blocks * bytes_per_s_of_block, whole);
  constexpr double nearly_all = 0.99;  // more would share the units instead of holding them
  const double held = std::min(nearly_all, blocks / static_cast<double>(options_.units));
  run(stream, {.name = name,
               .seconds = static_cast<double>(bytes) / rate,
               .use = {.compute = held, .memory = rate / whole}});
}

void VirtualOps::cast(Stream& stream, View dst, ConstView src) {
  move(stream, "cast", dst.bytes() + src.bytes());
}
void VirtualOps::dequantize(Stream& stream, View dst, ConstView blocks) {
  move(stream, "dequantize", dst.bytes() + blocks.bytes());
}
void VirtualOps::add(Stream& stream, View dst, ConstView src) {
  move(stream, "add", 2 * dst.bytes() + src.bytes());
}
void VirtualOps::scale(Stream& stream, View dst, ConstView src, double) {
  move(stream, "scale", dst.bytes() + src.bytes());
}
void VirtualOps::pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid, double) {
  move(stream, "pack_rows",
       dst.bytes() + grid.rows * grid.columns * grid.count * size_of(src.dtype));
}
void VirtualOps::reduce(Stream& stream, View dst, ConstView parts, ReduceOp, int) {
  move(stream, "reduce", dst.bytes() + parts.bytes());
}
void VirtualOps::sum_squares(Stream& stream, View out, ConstView src) {
  move(stream, "sum_squares", out.bytes() + src.bytes());
}
void VirtualOps::clip_factor(Stream& stream, View result, ConstView blocks, ClipRule) {
  move(stream, "clip_factor", result.bytes() + blocks.bytes());
}
void VirtualOps::adamw(Stream& stream, const AdamWStep& step) {
  move_in_blocks(stream, "adamw",
                 2 * (step.weights.bytes() + step.moment1.bytes() + step.moment2.bytes()) +
                     step.gradient.bytes() + step.weights_low.bytes(),
                 step.most_blocks);
}
void VirtualOps::sgd(Stream& stream, const SgdStep& step) {
  move_in_blocks(stream, "sgd",
                 2 * step.weights.bytes() + step.gradient.bytes() + step.weights_low.bytes(),
                 step.most_blocks);
}
void VirtualOps::fill_normal(Stream& stream, View dst, const NormalFill&) {
  move(stream, "fill_normal", dst.bytes());
}

}  // namespace atoll_v1::atoll::simulated
