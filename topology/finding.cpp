#include "atoll/finding.hpp"

#include <algorithm>
#include <array>

namespace atoll_v1::atoll {
namespace {

// Replaces control characters by spaces, because names come from files and devices.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

}  // namespace

std::string_view name(Severity severity) noexcept {
  constexpr std::array<std::string_view, 3> names{"info", "warning", "error"};
  return names[static_cast<std::size_t>(severity)];
}

std::string to_line(const Finding& finding) {
  std::string line = finding.evidence;
  for (const std::string* part : {&finding.consequence, &finding.fix})
    if (!part->empty()) line += "; " + *part;
  return one_line(std::move(line));
}

}  // namespace atoll_v1::atoll
