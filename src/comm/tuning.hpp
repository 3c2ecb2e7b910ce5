// Reads the user's choice of algorithms from Config::algorithm and from the file that
// Config::tuning names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/config.hpp"

namespace atoll_v1::atoll {

// Returns the value of atoll_group.tuning: lines "COLLECTIVE MIN_BYTES ALGORITHM\n", of which the
// last matching line applies, and lines "connections N\n". The lines of the file that
// Config::tuning names come first. The choices of CommunicatorOptions::algorithm, or else of
// Config::algorithm, which are "COLLECTIVE:ALGORITHM,...", follow as lines with a MIN_BYTES of 0.
//
// MIN_BYTES is the size of the whole tensor (S in nccl-tests). In the file, sizes may end in K, M
// or G (powers of 1,024), and # begins a comment. The backend checks the names of algorithms.
// Throws Error(invalid_argument) that names the variable or the line of the file, and Error(io) for
// a file that cannot be read.
std::string tuning_lines(const Config& config, const std::optional<std::string>& algorithm = {});

// The tuning lines that choose between one level (over all ranks) and two levels (inside hosts,
// then across hosts), for a backend that does not implement levels itself.
class LevelChoice {
 public:
  // Removes from `tuning`, which comes from tuning_lines(), the lines that choose "two_level" or
  // "flat" for all_gather or reduce_scatter. The other lines remain for the backend.
  static LevelChoice take_from(std::string& tuning);
  bool asks_for_levels() const;  // true if any line chooses "two_level"
  // Returns the choice of the last line that matches the collective and the size: true for two
  // levels, false for one level, nothing when no line matches. `bytes` is the size of the whole
  // tensor.
  std::optional<bool> two_level(std::int32_t kind, std::uint64_t bytes) const;
  // Returns true for collectives that the library can build in two levels.
  static bool applies_to(std::int32_t kind);

 private:
  struct Line {
    std::int32_t kind;
    std::uint64_t least_bytes;
    bool two_level;
  };
  std::vector<Line> lines_;
};

}  // namespace atoll_v1::atoll
