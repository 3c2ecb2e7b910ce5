// Sums non-negative doubles so that the result has the same bits for every order of addition, on
// CPUs and GPUs. Values are added as 128-bit integers, scaled so that the last bit of the largest
// value is bit 47. Smaller bits are cut off, and the sum is rounded once.
//
// All functions are constexpr: nvcc lets kernels call such functions (--expt-relaxed-constexpr).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace atoll_v1::atoll {

class ExactSum {
 public:
  // The bit pattern of a value without its sign. Patterns sort like the values, with infinity and
  // then NaN after all finite values.
  static constexpr std::uint64_t bits(double value) {
    return std::bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63);
  }

  // `largest` must be the largest result of bits() for all values that will be added.
  constexpr explicit ExactSum(std::uint64_t largest) : largest_(largest) {}

  // Adds the value for which bits() returned this pattern. At most 2^28 - 1 values may be added,
  // all of them finite.
  constexpr void add(std::uint64_t value) {
    const std::uint64_t digits = digits_of(value);
    const int shift = exponent(value) - exponent(largest_) + spare;
    if (shift > 0) {
      add(digits >> (64 - shift), digits << shift);
    } else if (shift > -64) {
      add(0, digits >> -shift);
    }
  }
  constexpr void add(std::uint64_t high, std::uint64_t low) {
    low_ += low;
    high_ += high + (low_ < low ? 1 : 0);
  }
  constexpr std::uint64_t high() const { return high_; }
  constexpr std::uint64_t low() const { return low_; }

  constexpr double value() const {
    if (exponent(largest_) == infinite) return std::bit_cast<double>(largest_);
    std::uint64_t high = high_, low = low_;
    int places = exponent(largest_) - bias - spare;
    while (high != 0) {
      low = (low >> 1) | (low & 1) | (high << 63);  // keeps a sticky bit for the rounding
      high >>= 1;
      ++places;
    }
    // 2^places may be too small for a normal value. The first product is exact, so the result is
    // rounded once more only if it is subnormal.
    constexpr int half = -600;
    const auto value = static_cast<double>(low);
    if (places >= half) return value * power_of_two(places);
    return value * power_of_two(half) * power_of_two(places - half);
  }

 private:
  static constexpr int spare = 47;  // leaves 128 - 53 - 47 = 28 bits for carries
  static constexpr int infinite = 0x7ff, bias = 1075;

  // Biased exponent of the last bit; subnormal values share that of the smallest normal values.
  static constexpr int exponent(std::uint64_t value) {
    const auto exponent = static_cast<int>(value >> 52);
    return exponent == 0 ? 1 : exponent;
  }
  static constexpr std::uint64_t digits_of(std::uint64_t value) {
    constexpr std::uint64_t one = std::uint64_t{1} << 52;
    return (value & (one - 1)) | (value < one ? 0 : one);
  }
  // The power must be in the range of normal values.
  static constexpr double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
  }

  std::uint64_t largest_;
  std::uint64_t high_ = 0, low_ = 0;
};

inline double exact_sum(std::span<const double> values) {
  std::uint64_t largest = 0;
  for (const double value : values) largest = std::max(largest, ExactSum::bits(value));
  ExactSum sum(largest);
  for (const double value : values) sum.add(ExactSum::bits(value));
  return sum.value();
}

}  // namespace atoll_v1::atoll
