// Builds a tuning file (ATOLL_TUNING) from curves that were saved with different algorithms. Pure,
// except tune(), which reads files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collective.hpp"

namespace busbw {

struct CurvePoint {
  Collective collective = Collective::all_reduce;
  std::string algorithm = {};
  std::string setting = {};  // dtype, op, place, ranks and hosts; times are compared if all match
  std::uint64_t bytes = 0;
  double time_us = 0;
};

// Returns the points of a --save file whose time depends on the algorithm: those on several hosts,
// except send_recv. Error(bad_data) names `source`, and the byte where the text is not JSON.
std::vector<CurvePoint> parse_curve(std::string_view text, std::string_view source);

// Returns lines "COLLECTIVE MIN_BYTES ALGORITHM", ordered by collective and size. Each size gets
// the algorithm with the least geometric mean of times over the settings that all algorithms of
// that size have; the choice for the smallest size holds from 0 bytes. Algorithms that round 16-bit
// types at each step (ring, doubling and halving, for sums) win only if such a type was compared,
// because a line holds for all types. Sizes with fewer than two algorithms are skipped, unless all
// sizes of the collective are like that. Error(bad_data) without any point.
std::string tuning_text(std::span<const CurvePoint> points);

// Reads curve files and returns their tuning_text(). Throws Error(io) if a file cannot be read, and
// the errors of parse_curve() and tuning_text().
std::string tune(std::span<const std::filesystem::path> curves);

}  // namespace busbw
