// The lines of the tuning that choose between one level and two, for a backend without levels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace atoll_v1::atoll {

class LevelChoice {
 public:
  // Removes from the lines of tuning_lines() those that say "two_level" or "flat" for all_gather or
  // reduce_scatter. The other lines stay for the backend.
  static LevelChoice take_from(std::string& tuning);
  bool asks_for_levels() const;  // at some size
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
