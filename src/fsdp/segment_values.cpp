#include "fsdp/segment_values.hpp"

#include <algorithm>

#include "device/cpu/kernels.hpp"
#include "device/int8_blocks.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll::fsdp {

void SegmentWriter::write(const Segment& segment, std::uint64_t at, std::span<const float> values) {
  if (values.empty()) return;
  View into;
  if (segment.param->quantized) {
    into = segment.blocks.part(int8_bytes(at), int8_bytes(values.size()));
    stored_.resize(into.bytes());
    cpu::quantize(stored_.data(), values);
  } else {
    into = segment.values.part(at, values.size());
    stored_.resize(into.bytes());
    cpu::cast({stored_.data(), values.size(), into.dtype}, values);
  }
  stream_.copy(into.data, stored_.data(), stored_.size());
  stream_.synchronize();  // the copy must end before the next call overwrites `stored_`
}

void initialize_narrow(const Device& device, Stream& stream, const Segment& segment,
                       SegmentInit init) {
  // A multiple of the number of values in a block of 8-bit integers.
  constexpr std::uint64_t most = 1 << 16;
  static_assert(most % int8_block == 0);
  const Buffer wide = device.allocate(std::min(most, segment.count) * sizeof(float));
  std::vector<float> values;
  SegmentWriter writer(stream);
  for (std::uint64_t at = 0; at < segment.count; at += most) {
    const std::uint64_t n = std::min(most, segment.count - at);
    device.ops().fill_normal(stream, wide.view(DType::f32).part(0, n),
                             {init.seed, init.stream, segment.first + at, segment.param->init.mean,
                              segment.param->init.deviation});
    values.resize(n);
    stream.copy(values.data(), wide.data(), n * sizeof(float));
    stream.synchronize();
    writer.write(segment, at, values);
  }
}

}  // namespace atoll_v1::atoll::fsdp
