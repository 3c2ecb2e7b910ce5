// Memory traffic without communication: what the limits of atoll-busbw and of tests/bench are
// measured with. Knows nothing of atoll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace traffic {

enum class Stores {
  cached,
  streaming,  // past the caches; addresses are multiples of 64
  library     // copies: what memcpy takes for the size; sums: cached
};

enum class Element {
  f32,
  bf16
};

void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores);

// `count` sums over all `from`, written to each of `to`, which may be among them. bf16 sums in f32
// and rounds to the nearest even; values are finite.
void sum(std::span<std::byte* const> to, std::span<const std::byte* const> from,
         std::uint64_t count, Element element, Stores stores);

}  // namespace traffic
