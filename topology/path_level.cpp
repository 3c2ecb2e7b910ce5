#include "path_level.hpp"

#include <algorithm>

namespace atoll_v1::atoll {
namespace {

// Devices below two ports of one switch share its upstream port, and each has its own downstream
// port. `nvidia-smi topo -m` counts that as one bridge (PIX), so it is PIX here as well.
std::optional<PathLevel> by_pci(std::string_view a, std::string_view b) {
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto ends = [&](std::string_view way) { return same == way.size() || way[same] == '/'; };
  // The length of the part that both paths share, cut to whole names.
  const std::size_t fork = ends(a) && ends(b) ? same : a.substr(0, same).rfind('/');
  if (fork == 0 || fork == std::string_view::npos) return std::nullopt;
  if (a.substr(0, fork).find('/') == std::string_view::npos) return PathLevel::phb;
  const auto is_deep = [&](std::string_view way) {
    return way.find('/', fork + 1) != std::string_view::npos;
  };
  return is_deep(a) || is_deep(b) ? PathLevel::pxb : PathLevel::pix;
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
