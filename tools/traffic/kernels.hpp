// Kernels that copy and sum memory without communication. atoll-busbw and tests/bench measure with
// them how fast the memory of the machine is. Independent of atoll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace traffic {

enum class Stores {
  cached,
  streaming,  // non-temporal stores; addresses must be multiples of 64
  library     // memcpy for copies; sums use cached stores
};

enum class Element {
  f32,
  bf16
};

void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores);

// Sums `count` elements over all arrays in `from` and writes the result to every array in `to`. The
// outputs may be among the inputs. bf16 is summed in f32 and rounded to nearest even. All values
// must be finite.
void sum(std::span<std::byte* const> to, std::span<const std::byte* const> from,
         std::uint64_t count, Element element, Stores stores);

}  // namespace traffic
