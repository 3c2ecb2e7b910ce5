// Writes values into this rank's parts of parameters, in the type in which the engine keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

class SegmentWriter {
 public:
  explicit SegmentWriter(Stream& stream) : stream_(stream) {}
  // Writes the elements of a segment from element `at` of the segment on. `at` must be a multiple
  // of 64 if the parameter is quantized. Blocks until the device has them.
  void write(const Segment& segment, std::uint64_t at, std::span<const float> values);

 private:
  Stream& stream_;
  std::vector<std::byte> stored_;
};

// Sets the elements of a segment to the initial values that `fill` describes, in small pieces. Used
// for parameters that the engine does not keep in f32. Blocks.
struct SegmentInit {
  std::uint64_t seed, stream;  // as in NormalFill
};
void initialize_narrow(const Device& device, Stream& stream, const Segment& segment,
                       SegmentInit init);

}  // namespace atoll_v1::atoll::fsdp
