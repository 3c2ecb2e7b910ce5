// One step of a Chrome trace as SVG: a row for each stream of each rank.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace train::page {

struct Timeline {
  std::string caption;  // which step, and what was left out
  std::string svg;      // empty if the trace has no whole step
};

// Draws the traced step whose duration is the median. Shows at most 8 ranks.
Timeline draw_timeline(const nlohmann::json& trace);

}  // namespace train::page
