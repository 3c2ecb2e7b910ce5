#include "atoll/finding.hpp"

#include <algorithm>
#include <array>

namespace atoll_v1::atoll {
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

}  // namespace atoll_v1::atoll
