#include "comm/tuning.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <sstream>

#include "atoll/plugin_names.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "core/settings.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll {
namespace {

template <class... Args>
Error bad(std::string_view where, fmt::format_string<Args...> why, Args&&... args) {
  return invalid("{}", terminal_safe(fmt::format("{}: {}", where,
                                                 fmt::format(why, std::forward<Args>(args)...))));
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    const std::size_t end = std::min(text.find_first_of(" \t\r"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

std::uint64_t bytes_from(std::string_view text, std::string_view where) {
  std::uint64_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, bytes);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  constexpr std::array<std::string_view, 4> units = {"", "K", "M", "G"};
  const auto* const found = std::ranges::find(units, unit);
  if (problem != std::errc() || found == units.end()) {
    throw bad(where, "\"{}\" is not a size: write bytes, or a number with K, M or G", text);
  }
  const auto shift = 10 * static_cast<unsigned>(found - units.begin());
  if (bytes > std::numeric_limits<std::uint64_t>::max() >> shift) {
    throw bad(where, "the size \"{}\" is too large", text);
  }
  return bytes << shift;
}

int connections_from(std::string_view text, std::string_view where) {
  constexpr int most = 16;
  const std::optional<int> number = number_from<int>(text);
  if (!number || *number < 1 || *number > most) {
    throw bad(where, "\"{}\" is not a number of connections from 1 to {}", text, most);
  }
  return *number;
}

// Returns the names of all collectives in alphabetical order.
std::vector<std::string_view> collectives() {
  std::vector<std::string_view> names(atoll_abi::kinds.begin(), atoll_abi::kinds.end());
  std::erase_if(names, [](auto name) { return atoll_abi::is_message(atoll_abi::kind_of(name)); });
  std::ranges::sort(names);
  return names;
}

std::string line(std::string_view collective, std::uint64_t least, std::string_view algorithm,
                 std::string_view where) {
  const std::int32_t kind = atoll_abi::kind_of(collective);
  if (kind < 0 || atoll_abi::is_message(kind)) {
    throw bad(where, "unknown collective \"{}\"; the collectives are: {}", collective,
              fmt::join(collectives(), ", "));
  }
  return fmt::format("{} {} {}\n", collective, least, algorithm);
}

std::string from_file(const std::string& path) {
  std::istringstream file(read_settings_file("ATOLL_TUNING", path));
  std::string lines, text;
  for (int number = 1; std::getline(file, text); ++number) {
    const auto words = words_of(std::string_view(text).substr(0, text.find('#')));
    if (words.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    if (words.size() == 2 && words[0] == "connections") {
      lines += fmt::format("connections {}\n", connections_from(words[1], where));
      continue;
    }
    if (words.size() != 3) {
      throw bad(where, "expected COLLECTIVE MIN_BYTES ALGORITHM, or connections N");
    }
    lines += line(words[0], bytes_from(words[1], where), words[2], where);
  }
  return lines;
}

// Converts a list of choices; `name` is the name of the setting that holds the list.
std::string from_choices(std::string_view text, std::string_view name) {
  if (trimmed(text).empty()) return {};
  const std::string where = fmt::format("{}=\"{}\"", name, text);
  std::string lines;
  for (const std::string_view choice : split(text, ',')) {
    const auto halves = split(choice, ':');
    const bool whole =
        halves.size() == 2 && words_of(halves[0]).size() == 1 && words_of(halves[1]).size() == 1;
    if (!whole) throw bad(where, "expected a comma-separated list of COLLECTIVE:ALGORITHM");
    lines += line(trimmed(halves[0]), 0, trimmed(halves[1]), where);
  }
  return lines;
}

}  // namespace

std::string tuning_lines(const Config& config, const std::optional<std::string>& algorithm) {
  const std::string lines = config.tuning.empty() ? std::string() : from_file(config.tuning);
  return lines + (algorithm ? from_choices(*algorithm, "CommunicatorOptions::algorithm")
                            : from_choices(config.algorithm, "ATOLL_ALGORITHM"));
}

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
