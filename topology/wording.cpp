#include "wording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "atoll/finding.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll {
namespace {

// Splits a name: "HOST/gpu12" -> {"HOST/gpu", 12}; a name without a number has -1.
std::pair<std::string_view, int> split_number(std::string_view id) {
  const auto stem = id.substr(0, id.find_last_not_of("0123456789") + 1);
  const auto number = parse_number<int>(id.substr(stem.size()));
  return number ? std::pair{stem, *number} : std::pair{id, -1};
}

}  // namespace

void fail_at(std::string_view source, std::size_t offset, std::string_view what) {
  throw Error(ErrorCode::bad_data, fmt::format("{}: byte {}: {}", source, offset, what));
}

std::string plural(std::size_t count, std::string_view noun) {
  if (const auto either = noun.find(" or "); count != 1 && either != std::string_view::npos)
    return fmt::format("{} {}s{}s", count, noun.substr(0, either), noun.substr(either));
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string gib_text(double bytes) {
  const double value = bytes / 0x1p30;
  return value >= 100 ? fmt::format("{:.0f} GiB", value) : fmt::format("{:.3g} GiB", value);
}

std::string number_ranges(std::span<const int> numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[begin]);
    if (end - begin > 1) text += fmt::format("-{}", numbers[end - 1]);
    begin = end;
  }
  return text;
}

bool natural_less(std::string_view a, std::string_view b) noexcept {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [&](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view left = number(a, i), right = number(b, j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // decides between names with equal numbers, such as "1" and "01"
}

std::string enumerate(std::span<const std::string> words, std::size_t most) {
  std::string text;
  const std::size_t shown = std::min(words.size(), most);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == words.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", words[i]);
  }
  if (words.size() > shown) text += fmt::format(" and {} more", words.size() - shown);
  return text;
}

std::string printable(std::string_view text) {
  std::string shown(text);
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return shown;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown(text.substr(0, limit));
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blank = " \t\r\n";
  const auto begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

PortName split_port(std::string_view name) noexcept {
  const auto colon = name.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == name.size() ||
      name.find_first_not_of("0123456789", colon + 1) != std::string_view::npos)
    return {name, ""};
  return {name.substr(0, colon), name.substr(colon + 1)};
}

bool is_plain(std::string_view word) noexcept {
  return !word.empty() &&
         word.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-") ==
             std::string_view::npos;
}

std::string with_name(std::string command, std::string_view word, std::string_view name) {
  if (!is_plain(name)) return command;
  for (auto at = command.find(word); at != std::string::npos;
       at = command.find(word, at + name.size()))
    command.replace(at, word.size(), name);
  return command;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string hex_digits(std::string_view text) {
  std::string digits = lower_case(text);
  if (digits.starts_with("0x")) digits.erase(0, 2);
  return digits.find_first_not_of("0123456789abcdef") == std::string::npos ? digits : "";
}

std::string_view name(Severity severity) noexcept {
  constexpr std::array<std::string_view, 3> names{"info", "warning", "error"};
  return names[static_cast<std::size_t>(severity)];
}

std::string to_line(const Finding& finding) {
  std::string line = finding.evidence;
  for (const std::string* part : {&finding.consequence, &finding.fix})
    if (!part->empty()) line += "; " + *part;
  // Names come from files and devices, so they may contain control characters.
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

std::string_view fabric_name(std::string_view fabric) noexcept {
  if (fabric == "nvlink") return "NVLink";
  if (fabric == "xgmi") return "xGMI";
  if (fabric == "cpu") return "CPU";
  return fabric;
}

DisplayNames::DisplayNames(const Topology& topology) {
  std::map<std::string, int> uses;
  for (const TopologyHost& host : topology.hosts) ++uses[host.name];
  for (const TopologyHost& host : topology.hosts)
    hosts_[host.id] = uses[host.name] == 1 && !host.name.empty() ? host.name : host.id;
}

std::string DisplayNames::host(const std::string& id) const {
  const auto found = hosts_.find(id);
  return printable(found == hosts_.end() ? id : found->second);
}

std::string DisplayNames::device(const std::string& id) const {
  const auto slash = id.rfind('/');
  if (slash == std::string::npos) return printable(id);
  return host(id.substr(0, slash)) + printable(id.substr(slash));
}

std::string DisplayNames::gpus(std::span<const std::string> ids, std::size_t most) const {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const std::string& id : ids) {
    const std::string shown = device(id);
    const auto [stem, number] = split_number(shown);
    if (groups.empty() || groups.back().first != stem)
      groups.push_back({std::string(stem), std::vector<int>()});
    if (number >= 0) groups.back().second.push_back(number);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), most); ++i) {
    const auto& [stem, numbers] = groups[i];
    // Repeats "gpu" after a comma, as in "node/gpu0-2, gpu5", because a bare number would be
    // ambiguous.
    const std::string word = stem.substr(stem.rfind('/') + 1);
    std::string ranges = number_ranges(numbers);
    for (auto comma = ranges.find(", "); comma != std::string::npos;
         comma = ranges.find(", ", comma + 2))
      ranges.insert(comma + 2, word);
    text += fmt::format("{}{}{}", i == 0 ? "" : ", ", stem, ranges);
  }
  if (groups.size() > most) text += fmt::format(" and {} more", groups.size() - most);
  return text;
}

}  // namespace atoll_v1::atoll
