#include "path_level.hpp"

#include <algorithm>
#include <vector>

namespace atoll_v1::atoll {
namespace {

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const auto slash = path.find('/');
    parts.push_back(path.substr(0, slash));
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
  }
  return parts;
}

// Devices below two ports of one switch share its upstream port, and each has its own downstream
// port. `nvidia-smi topo -m` counts that as one bridge.
std::optional<PathLevel> by_pci(std::string_view a, std::string_view b) {
  const auto way_a = split(a), way_b = split(b);
  const auto fork = std::ranges::mismatch(way_a, way_b);
  const auto shared = fork.in1 - way_a.begin();
  if (shared == 0) return std::nullopt;
  if (shared == 1) return PathLevel::phb;
  return way_a.end() - fork.in1 <= 1 && way_b.end() - fork.in2 <= 1 ? PathLevel::pix
                                                                    : PathLevel::pxb;
}

}  // namespace

PathLevels::PathLevels(const Topology& topology) {
  for (const TopologyPath& path : topology.paths)
    stated_.try_emplace(std::minmax<std::string_view>(path.a, path.b), path.level);
}

std::optional<PathLevel> PathLevels::stated(std::string_view a, std::string_view b) const {
  const auto found = stated_.find(std::minmax(a, b));
  return found == stated_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PathLevel> PathLevels::between(const DeviceLocation& a,
                                             const DeviceLocation& b) const {
  if (a.host != b.host) return std::nullopt;
  if (const auto level = stated(a.id, b.id)) return level;
  if (const auto level = by_pci(a.pci_path, b.pci_path)) return level;
  if (a.numa >= 0 && a.numa == b.numa) return PathLevel::node;
  if (a.package >= 0 && b.package >= 0)
    return a.package == b.package ? PathLevel::package : PathLevel::sys;
  if (a.numa >= 0 && b.numa >= 0) return PathLevel::sys;
  return std::nullopt;
}

}  // namespace atoll_v1::atoll
