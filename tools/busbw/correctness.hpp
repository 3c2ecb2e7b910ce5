// Test inputs with known results: small whole numbers whose partial sums over the ranks are exact
// in the element type, in any order of summation. The values repeat with a prime period, so that a
// block at a wrong offset is detected. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/view.hpp"
#include "collective.hpp"

namespace busbw {

inline constexpr std::uint64_t pattern_period = 10'007;

// One period of a periodic sequence of test values, in an element type.
class Pattern {
 public:
  // Input of rank `rank` of `ranks` for `op`; Op::none gives data that is only moved. `seed`
  // distinguishes operations that reuse a buffer.
  static Pattern input(atoll::DType dtype, Op op, int rank, int ranks, std::uint64_t seed);
  // Result of `op` over the inputs of all ranks.
  static Pattern reduced(atoll::DType dtype, Op op, int ranks, std::uint64_t seed);

  // Sets data[i] = value(first + i).
  void fill(atoll::View data, std::uint64_t first = 0) const;
  // Counts the i with data[i] != value(first + i). Results of avg may differ by a few units in the
  // last place, because a backend may multiply by 1 / ranks. All others must be equal.
  std::uint64_t count_wrong(atoll::ConstView data, std::uint64_t first = 0) const;
  double value(std::uint64_t index) const { return values_[index % pattern_period]; }

 private:
  Pattern(atoll::DType dtype, std::vector<double> values, double tolerance);
  bool is_close(const std::byte* element, double wanted) const;

  atoll::DType dtype_;
  std::vector<double> values_;
  std::vector<std::byte> encoded_;  // values_ twice, converted to the element type, so that a
                                    // whole period can be read from any position of the first
  // Largest allowed relative error; 0 means that results must be exact.
  double tolerance_;
};

// The largest number up to which the type represents all whole numbers exactly.
double exact_limit(atoll::DType dtype) noexcept;

// Byte that fills results before an operation. No contribution has this value.
inline constexpr int poison = 0xEE;

}  // namespace busbw
