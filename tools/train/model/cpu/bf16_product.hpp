// Products of small bf16 matrices that fit the caches, summed in f32 by AVX512-BF16 or AMX
// instructions. One thread computes a product, so its bits do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace train::cpu {

// The bf16 instructions of a processor. `amx` includes those of `avx512`.
enum class Bf16Instructions {
  none,
  avx512,
  amx
};

// Returns the best that the processor and the operating system offer. The first call asks Linux to
// permit AMX to this process.
Bf16Instructions bf16_instructions();

// Whether AVX512-BF16 products are faster than f32 products: on AMD's processors by a factor of 2,
// but on Intel's they take twice the time.
bool avx512_bf16_is_fast();

// All sizes of a product are multiples of this.
inline constexpr std::size_t bf16_pad = 32;

// C [m, n] = A [m, k] B [k, n], or C += A B.
struct Bf16Product {
  const std::uint16_t* a;  // A, in rows of k values
  std::size_t a_row;       // elements from one row of A to the next; even
  // One row for each two rows of B: element j holds B[2i][j] in its low half and B[2i + 1][j] in
  // its high half.
  const std::uint32_t* b;
  std::size_t b_row;  // elements from one row of pairs to the next
  float* c;
  std::size_t c_row;
  std::size_t m, n, k;
  bool accumulate;
};

// `instructions` must not be `none` or better than what the processor offers.
void multiply(Bf16Instructions instructions, const Bf16Product& product);

// Rounds `count` values, a multiple of 32, to nearest even, by AVX512-BF16. Values too small for a
// normal f32 number become 0; NaN stays NaN.
void round_to_bf16(const float* from, std::size_t count, std::uint16_t* to);

}  // namespace train::cpu
