// Inputs whose results are known without computing them twice: small whole numbers, periodic in
// the index, such that every partial sum over the ranks is exact in the element type whatever the
// order of summation. The period is a prime, so that a block that arrives at the wrong offset
// shows. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/view.hpp"
#include "collective.hpp"

namespace busbw {

inline constexpr std::uint64_t pattern_period = 10'007;

// One period of values, for an element type.
class Pattern {
 public:
  // What rank `rank` of `ranks` contributes to an operation with `op` (none: data that only moves).
  // `seed` tells operations that reuse a buffer apart.
  static Pattern input(atoll::DType dtype, Op op, int rank, int ranks, std::uint64_t seed);
  // The result of `op` over the inputs of all ranks.
  static Pattern reduced(atoll::DType dtype, Op op, int ranks, std::uint64_t seed);

  // data[i] = value(first + i).
  void fill(atoll::View data, std::uint64_t first = 0) const;
  // How many i have data[i] != value(first + i). avg is compared within a few units in the last
  // place, for a backend may multiply by 1 / ranks; all else must be equal.
  std::uint64_t count_wrong(atoll::ConstView data, std::uint64_t first = 0) const;
  double value(std::uint64_t index) const { return values_[index % pattern_period]; }

 private:
  Pattern(atoll::DType dtype, std::vector<double> values, double tolerance);
  bool is_close(const std::byte* element, double wanted) const;

  atoll::DType dtype_;
  std::vector<double> values_;
  std::vector<std::byte> encoded_;  // values_ as elements, twice
  double tolerance_;                // relative
};

// The largest number up to which all whole numbers are exact.
double exact_limit(atoll::DType dtype) noexcept;

// The octet that stands in results before an operation: no contribution is it.
inline constexpr int poison = 0xEE;

}  // namespace busbw
