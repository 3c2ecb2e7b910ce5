// The user's choice of algorithms: Config::algorithm and the file that Config::tuning names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atoll/config.hpp"

namespace atoll_v1::atoll {

// Returns the lines of atoll_group.tuning: "COLLECTIVE MIN_BYTES ALGORITHM\n", of which the last
// matching one counts, and "connections N\n". The lines of the file come first, then those of
// Config::algorithm ("COLLECTIVE:ALGORITHM,..."), with a MIN_BYTES of 0.
//
// Bytes count the whole tensor (S of nccl-tests). The file has the same lines; sizes may end in K,
// M or G (powers of 1,024), and # begins a comment. The backend checks the names of algorithms.
// Throws Error(invalid_argument) that names the variable, or file and line, and Error(io) for a
// file that cannot be read.
std::string tuning_lines(const Config& config);

// The lines that choose between one level and two, for a backend without levels.
class LevelChoice {
 public:
  // Removes from the lines of tuning_lines() those that say "two_level" or "flat" for all_gather or
  // reduce_scatter. The other lines stay for the backend.
  static LevelChoice take_from(std::string& tuning);
  bool asks_for_levels() const;  // true if any line says "two_level"
  // True for two levels, false for one, by the last line that matches this size; nothing when no
  // line matches. `bytes` counts the whole tensor.
  std::optional<bool> two_level(std::int32_t kind, std::uint64_t bytes) const;
  // The collectives that core can build in two levels.
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
