// Memory traffic without communication: the bound that the table calls `limit`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "row.hpp"

namespace atoll_bench {

enum class Stores {
  cached,
  streaming  // past the caches; addresses are multiples of 64
};

void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores);

// `count` sums over all `from`, written to each of `to`. bf16 sums in f32 and rounds to the nearest
// even; values are finite.
void sum(std::span<std::byte* const> to, std::span<const std::byte* const> from,
         std::uint64_t count, Element element, Stores stores);

}  // namespace atoll_bench
