#include "comm/level_choice.hpp"

#include <algorithm>
#include <sstream>

#include "atoll/plugin_names.hpp"

namespace atoll_v1::atoll {

bool LevelChoice::applies_to(std::int32_t kind) {
  return kind == ATOLL_ALL_GATHER || kind == ATOLL_REDUCE_SCATTER;
}

LevelChoice LevelChoice::take_from(std::string& tuning) {
  LevelChoice choice;
  std::string rest, text;
  std::istringstream lines(tuning);
  while (std::getline(lines, text)) {
    std::istringstream words(text);
    std::string collective, algorithm;
    Line line{};
    words >> collective >> line.least_bytes >> algorithm;
    line.kind = atoll_abi::kind_of(collective);
    line.two_level = algorithm == "two_level";
    if (applies_to(line.kind) && (line.two_level || algorithm == "flat")) {
      choice.lines_.push_back(line);
    } else {
      rest += text + '\n';
    }
  }
  tuning = std::move(rest);
  return choice;
}

bool LevelChoice::asks_for_levels() const { return std::ranges::any_of(lines_, &Line::two_level); }

std::optional<bool> LevelChoice::two_level(std::int32_t kind, std::uint64_t bytes) const {
  std::optional<bool> found;
  for (const Line& line : lines_) {
    if (line.kind == kind && bytes >= line.least_bytes) found = line.two_level;
  }
  return found;
}

}  // namespace atoll_v1::atoll
