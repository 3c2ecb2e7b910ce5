// A tuning file (ATOLL_TUNING) from curves that were saved with different algorithms. Pure.
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
  std::string setting = {};  // dtype, op, place, ranks, hosts: what must be equal to compare
  std::uint64_t bytes = 0;
  double time_us = 0;
};

// The points of a --save file whose time depends on an algorithm: those of several hosts, and not
// of send_recv. Error(bad_data) that names `source`, and the byte where it is no JSON.
std::vector<CurvePoint> parse_curve(std::string_view text, std::string_view source);

// Lines "COLLECTIVE MIN_BYTES ALGORITHM" in order of collective and size: for each size the
// algorithm with the least geometric mean of times over the settings that all algorithms of that
// size have; from 0 bytes on the choice for the smallest size. Algorithms that round 16-bit types
// at each step (ring, doubling, halving, of sums) win only where such a type was compared, since
// lines hold for all dtypes. Sizes that fewer than two algorithms have decide nothing unless no
// size of the collective has more. Error(bad_data) without any point.
std::string tuning_text(std::span<const CurvePoint> points);

// Reads the curves. Error(io) and as above.
std::string tune(std::span<const std::filesystem::path> curves);

}  // namespace busbw
