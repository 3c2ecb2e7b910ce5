#include "comm/group_shape.hpp"

#include <bit>

namespace atoll_v1::atoll {
namespace {

bool is_power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

}  // namespace

std::vector<int> hosts_of(const Axis& axis) {
  std::vector<int> hosts;
  for (const int rank : axis.ranks) {
    hosts.push_back(axis.world->placements()[static_cast<std::size_t>(rank)].host);
  }
  return hosts;
}

std::optional<Levels> levels_of(std::span<const int> hosts, int block) {
  const int of_host = ranks_per_host(hosts);
  if (of_host == 0) return std::nullopt;
  if (block == 0 || block == of_host) {
    if (block == 0 && !is_power_of_two(of_host)) return std::nullopt;
    return Levels{of_host, 0, 0};
  }
  if (block % of_host == 0 && is_power_of_two(of_host)) return Levels{of_host, 0, block / of_host};
  if (of_host % block == 0 && is_power_of_two(of_host / block)) return Levels{of_host, block, 0};
  return std::nullopt;
}

}  // namespace atoll_v1::atoll
