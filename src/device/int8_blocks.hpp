// Values in 8 bits: blocks of 64 signed integers with one f32 factor each, 68 bytes for 64 values.
#pragma once

#include <cstdint>
#include <span>

#include "atoll/view.hpp"

namespace atoll_v1::atoll {

inline constexpr std::uint64_t int8_block = 64;

// Value i is codes[i] * scale, with scale = (largest magnitude of the block) / 127. A value differs
// from what was stored by at most scale / 2, plus one rounding to f32. If a value of the block is
// not finite, `scale` and thus the whole block is NaN.
struct Int8Block {
  float scale;
  std::int8_t codes[int8_block];
};
static_assert(sizeof(Int8Block) == 68 && alignof(Int8Block) == 4,
              "the blocks are stored in checkpoints and sent between ranks");

// Returns the bytes of the blocks for `elements` values. The last block may be incomplete.
constexpr std::uint64_t int8_bytes(std::uint64_t elements) {
  return (elements + int8_block - 1) / int8_block * sizeof(Int8Block);
}

namespace cpu {

// Writes the values as blocks. `blocks` has int8_bytes(values.size()) bytes at an address that is a
// multiple of 4. Codes behind the last value are 0. Rounds to nearest even.
void quantize(void* blocks, std::span<const float> values);
// Writes the values of blocks in the type of `values`: f32, bf16, f16 or f64. Computes them in f32
// and rounds once.
void dequantize(View values, const void* blocks);

}  // namespace cpu
}  // namespace atoll_v1::atoll
