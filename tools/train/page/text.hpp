// Text of the page: escaping, and numbers as people read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace train::page {

// Replaces the characters that HTML and SVG give a meaning, and quotes.
std::string escape(std::string_view text);

// The unit of a figure. It decides how the figure is written.
enum class Unit {
  number,       // 0.00123, 2.05
  count,        // 12.3 k, 4.56 M
  share,        // 0.312 is written as 31.2 %
  seconds,      // 12.3 ms
  bytes,        // 65.3 MB, powers of 1000
  bytes_per_s,  // 1.2 GB/s
  flops,        // 118 GFLOP/s
};

// The name of a unit in the page's data, which the script reads.
std::string_view name(Unit unit);

// Returns "-" for a number that is not finite.
std::string format(double value, Unit unit);

// Round numbers that divide [low, high] into about `count` parts. Both ends may lie outside.
std::vector<double> ticks(double low, double high, int count);

}  // namespace train::page
