#include "mesh_sites.hpp"

#include <fmt/format.h>

#include <map>

namespace atoll_v1::atoll {

Neighbourhood MeshSites::nearest(int rank) const {
  const MeshSite& site = at(rank);
  if (site.block >= 0) return {Neighbourhood::Kind::emulated, site.block};
  if (site.island >= 0) {
    const Island& island = islands[static_cast<std::size_t>(site.island)];
    if (island.state == IslandState::known && island.gpus.size() > 1)
      return {Neighbourhood::Kind::island, site.island};
  }
  return {Neighbourhood::Kind::host, site.host};
}

Neighbourhood MeshSites::widest(int rank) const {
  const Neighbourhood near = nearest(rank);
  if (near.kind == Neighbourhood::Kind::emulated) return near;
  if (near.kind == Neighbourhood::Kind::island &&
      islands[static_cast<std::size_t>(near.number)].hosts.size() > 1)
    return near;
  return {Neighbourhood::Kind::host, at(rank).host};
}

MeshSites locate(const Topology& topology, const std::vector<RankSite>& ranks,
                 const MeshPlanOptions& options) {
  if (ranks.empty()) throw Error(ErrorCode::invalid_argument, "a mesh needs at least one rank");
  const int islands = options.emulated_islands;
  const int size = static_cast<int>(ranks.size());
  if (islands < 0 || (islands > 0 && size % islands != 0))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ranks cannot be {} equal emulated islands", size, islands));

  MeshSites sites;
  sites.islands = find_islands(topology);
  std::map<std::string, int> island_of, gpu_number, host_number;
  for (std::size_t i = 0; i < sites.islands.size(); ++i)
    for (const std::string& gpu : sites.islands[i].gpus) island_of[gpu] = static_cast<int>(i);
  for (std::size_t i = 0; i < topology.gpus.size(); ++i)
    gpu_number.try_emplace(topology.gpus[i].id, static_cast<int>(i));

  for (int rank = 0; rank < size; ++rank) {
    const RankSite& given = ranks[static_cast<std::size_t>(rank)];
    MeshSite site;
    const auto [host, is_new] =
        host_number.try_emplace(given.host, static_cast<int>(sites.hosts.size()));
    if (is_new) sites.hosts.push_back(given.host);
    site.host = host->second;
    if (!given.gpu.empty()) {
      const auto gpu = gpu_number.find(given.gpu);
      if (gpu == gpu_number.end())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("rank {} is said to use GPU {}, which the topology does not list",
                                rank, given.gpu));
      site.gpu = gpu->second;
      site.island = island_of.at(given.gpu);
    }
    if (islands > 0) site.block = rank / (size / islands);
    sites.ranks.push_back(site);
  }
  return sites;
}

}  // namespace atoll_v1::atoll
