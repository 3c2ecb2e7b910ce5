#include "mesh/mesh_sites.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "facts.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Numbers = std::unordered_map<std::string_view, int>;

// Maps each element's id to its index. The keys are views of the elements' ids.
template <class T>
Numbers number_ids(const std::vector<T>& elements) {
  Numbers numbers;
  numbers.reserve(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i)
    numbers.try_emplace(elements[i].id, static_cast<int>(i));
  return numbers;
}

void locate_hosts(const Topology& topology, const std::vector<RankSite>& ranks, MeshSites& sites) {
  const Numbers listed = number_ids(topology.hosts);
  std::vector<bool> used(topology.hosts.size(), false);
  std::set<std::string_view> unlisted;
  for (const RankSite& rank : ranks) {
    const auto found = listed.find(rank.host);
    if (found == listed.end())
      unlisted.insert(rank.host);
    else
      used[at_index(found->second)] = true;
  }
  for (std::size_t i = 0; i < used.size(); ++i)
    if (used[i]) sites.hosts.push_back(topology.hosts[i].id);
  for (const std::string_view host : unlisted) sites.hosts.emplace_back(host);

  Numbers numbers;
  for (std::size_t i = 0; i < sites.hosts.size(); ++i)
    numbers.try_emplace(sites.hosts[i], static_cast<int>(i));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    sites.ranks[rank].host = numbers.at(ranks[rank].host);
}

void locate_gpus(const Topology& topology, const std::vector<RankSite>& ranks,
                 const Numbers& numbers, MeshSites& sites) {
  std::vector<int> island_of(topology.gpus.size(), -1);
  for (std::size_t i = 0; i < sites.islands.size(); ++i)
    for (const std::string& gpu : sites.islands[i].gpus)
      island_of[at_index(numbers.at(gpu))] = static_cast<int>(i);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) continue;
    const auto gpu = numbers.find(ranks[rank].gpu);
    if (gpu == numbers.end())
      refuse("rank {} uses GPU {}, which the topology does not list", rank, ranks[rank].gpu);
    const auto number = at_index(gpu->second);
    MeshSite& site = sites.ranks[rank];
    site.gpu = gpu->second;
    site.number = topology.gpus[number].index;
    site.island = island_of[number];
  }
}

// Rails matter only if leaf switches are known: assumed rails follow the order of the GPUs, and so
// do the ranks. Rails do not matter on a single host.
void locate_rails(const Topology& topology, const Numbers& numbers, MeshSites& sites) {
  const bool has_leaves = std::ranges::any_of(topology.nics, [](const TopologyNic& nic) {
    return !get_fact(nic.facts, fact::leaf).empty();
  });
  if (!has_leaves || sites.hosts.size() < 2) return;
  std::vector<int> rail_of(topology.gpus.size(), -1);
  for (const Rail& rail : find_rails(topology, find_affinity(topology)))
    for (const std::string& gpu : rail.gpus)
      if (const auto found = numbers.find(gpu); found != numbers.end()) {
        int& first = rail_of[at_index(found->second)];
        first = first < 0 ? rail.index : std::min(first, rail.index);
      }
  for (MeshSite& site : sites.ranks)
    if (site.gpu >= 0) site.rail = rail_of[at_index(site.gpu)];
}

// Groups the ranks by neighbourhood. Sorts the ranks of each group by position, and groups by the
// position of their first ranks.
std::vector<RankGroup> collect(const MeshSites& sites,
                               Neighbourhood (MeshSites::*neighbourhood)(int) const) {
  std::vector<RankGroup> groups;
  std::map<Neighbourhood, std::size_t> numbers;
  for (int rank = 0; rank < static_cast<int>(sites.ranks.size()); ++rank) {
    const Neighbourhood where = (sites.*neighbourhood)(rank);
    const auto [at, is_new] = numbers.try_emplace(where, groups.size());
    if (is_new) groups.push_back({where, {}});
    groups[at->second].ranks.push_back(rank);
  }
  for (RankGroup& group : groups)
    std::ranges::sort(group.ranks, {}, [&](int rank) { return sites.position(rank); });
  std::ranges::sort(groups, {},
                    [&](const RankGroup& group) { return sites.position(group.ranks.front()); });
  return groups;
}

std::vector<int> numbers_of(const std::vector<RankGroup>& groups, std::size_t ranks) {
  std::vector<int> group_of(ranks, 0);
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const int rank : groups[group].ranks) group_of[at_index(rank)] = static_cast<int>(group);
  return group_of;
}

}  // namespace

Neighbourhood MeshSites::nearest(int rank) const {
  const MeshSite& site = at(rank);
  if (site.block >= 0) return {Neighbourhood::Kind::emulated, site.block};
  if (site.island >= 0) {
    const Island& island = islands[at_index(site.island)];
    if (island.state == IslandState::known && island.gpus.size() > 1)
      return {Neighbourhood::Kind::island, site.island};
  }
  return {Neighbourhood::Kind::host, site.host};
}

Neighbourhood MeshSites::widest(int rank) const {
  const Neighbourhood near = nearest(rank);
  if (near.kind == Neighbourhood::Kind::emulated) return near;
  if (near.kind == Neighbourhood::Kind::island && islands[at_index(near.number)].hosts.size() > 1)
    return near;
  return {Neighbourhood::Kind::host, at(rank).host};
}

bool MeshSites::is_alone(int rank) const {
  const MeshSite& site = at(rank);
  if (site.block >= 0 || site.island < 0) return false;
  const Island& island = islands[at_index(site.island)];
  return island.state != IslandState::unknown && island.gpus.size() == 1;
}

std::tuple<int, int, unsigned, int, int, int> MeshSites::position(int rank) const {
  const MeshSite& site = at(rank);
  // Ranks of emulated islands keep their order. Otherwise ranks without a rail follow those with
  // one, and ranks without a GPU come last.
  if (site.block >= 0) return {site.block, 0, 0, 0, 0, rank};
  return {site.host, site.gpu < 0 ? 1 : 0, static_cast<unsigned>(site.rail), site.number, site.gpu,
          rank};
}

MeshSites locate(const Topology& topology, const std::vector<RankSite>& ranks,
                 const MeshPlanOptions& options) {
  if (ranks.empty()) refuse("a mesh needs at least one rank");
  const int islands = options.emulated_islands;
  const int size = static_cast<int>(ranks.size());
  if (islands < 0 || (islands > 0 && size % islands != 0))
    refuse("{} ranks cannot form {} equal emulated islands", size, islands);

  MeshSites sites;
  sites.ranks.resize(ranks.size());
  sites.islands = find_islands(topology);
  const Numbers gpus = number_ids(topology.gpus);
  locate_hosts(topology, ranks, sites);
  locate_gpus(topology, ranks, gpus, sites);
  if (islands == 0) locate_rails(topology, gpus, sites);
  if (islands > 0)
    for (int rank = 0; rank < size; ++rank)
      sites.ranks[at_index(rank)].block = rank / (size / islands);
  return sites;
}

RankGroups group_ranks(const MeshSites& sites) {
  RankGroups groups;
  groups.near = collect(sites, &MeshSites::nearest);
  groups.wide = collect(sites, &MeshSites::widest);
  groups.wide_of = numbers_of(groups.wide, sites.ranks.size());
  std::ranges::stable_sort(groups.near, {}, [&](const RankGroup& group) {
    return groups.wide_of[at_index(group.ranks.front())];
  });
  groups.near_of = numbers_of(groups.near, sites.ranks.size());
  return groups;
}

bool alike(const std::vector<RankGroup>& groups) {
  return std::ranges::all_of(
      groups, [&](const RankGroup& group) { return group.size() == groups.front().size(); });
}

std::string sizes_text(const std::vector<RankGroup>& groups) {
  std::map<int, std::size_t, std::greater<>> sizes;
  for (const RankGroup& group : groups) ++sizes[group.size()];
  std::string text;
  for (const auto& [size, count] : sizes)
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", count, size);
  return text;
}

std::string noun(const MeshSites& sites, const RankGroup& group) {
  if (group.where.kind == Neighbourhood::Kind::emulated) return "emulated island";
  const Neighbourhood first = sites.nearest(group.ranks.front());
  const bool in_one_island =
      first.kind == Neighbourhood::Kind::island &&
      std::ranges::all_of(group.ranks, [&](int rank) { return sites.nearest(rank) == first; });
  if (!in_one_island) return "host";
  return fmt::format("{} island", fabric_name(sites.islands[at_index(first.number)].fabric));
}

std::string shared_noun(const MeshSites& sites, const std::vector<RankGroup>& groups) {
  std::set<std::string> nouns;
  for (const RankGroup& group : groups) nouns.insert(noun(sites, group));
  return nouns.size() == 1 ? *nouns.begin() : "island or host";
}

std::string with_article(const std::string& noun) {
  const bool vowel_sound = std::string_view("aeiouAEIOU").find(noun[0]) != std::string_view::npos ||
                           noun.starts_with("NV") || noun.starts_with("x");
  return (vowel_sound ? "an " : "a ") + noun;
}

bool all_have_gpus(const MeshSites& sites) {
  return std::ranges::all_of(sites.ranks, [](const MeshSite& site) { return site.gpu >= 0; });
}

}  // namespace atoll_v1::atoll
