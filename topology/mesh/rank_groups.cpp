#include "mesh/rank_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// Sorts the ranks of each group by position, and groups by the position of their first ranks.
void sort_groups(const MeshSites& sites, std::vector<RankGroup>& groups) {
  for (RankGroup& group : groups)
    std::ranges::sort(group.ranks, {}, [&](int rank) { return sites.position(rank); });
  std::ranges::sort(groups, {},
                    [&](const RankGroup& group) { return sites.position(group.ranks.front()); });
}

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
  sort_groups(sites, groups);
  return groups;
}

std::vector<int> numbers_of(const std::vector<RankGroup>& groups, std::size_t ranks) {
  std::vector<int> group_of(ranks, 0);
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const int rank : groups[group].ranks) group_of[at_index(rank)] = static_cast<int>(group);
  return group_of;
}

}  // namespace

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
