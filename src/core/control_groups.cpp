#include "core/control_groups.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "core/text.hpp"

namespace atoll_v1::atoll {

namespace fs = std::filesystem;

std::vector<fs::path> control_groups(std::string_view controller, const fs::path& root) {
  std::vector<fs::path> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // NUMBER:CONTROLLERS:/PATH
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    fs::path base = root / "sys/fs/cgroup";
    if (!line.starts_with("0::")) {
      const auto listed = split(std::string_view(line).substr(first + 1, second - first - 1), ',');
      if (std::ranges::find(listed, controller) == listed.end()) continue;
      base /= controller;
    }
    fs::path path = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (; !path.empty(); path = path.parent_path()) groups.push_back(base / path);
    groups.push_back(base);
  }
  return groups;
}

std::optional<std::uint64_t> number_of(const fs::path& file) {
  std::uint64_t value = 0;
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

}  // namespace atoll_v1::atoll
