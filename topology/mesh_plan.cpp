// Which mesh suits a machine.
//
// Idea: a sharded step gathers every parameter over the shard axis several times and crosses the
// replicate axis once, so the shard axis belongs on the fastest links, as wide as they reach. A
// *neighbourhood* is the larger of island and host; the ranks of one become a row of the mesh.
// Steps:
//   1. group the ranks by neighbourhood;
//   2. the shard axis is the largest number that divides the size of every group (their size, when
//      they are equal);
//   3. order each group by host and GPU, so that a column joins equal positions: on machines whose
//      NICs form rails, equal positions share a rail. A group that makes several rows is ordered by
//      island first, so that the rows break where the islands do.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "atoll/topology.hpp"
#include "mesh_sites.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Kind = Neighbourhood::Kind;

struct Group {
  Neighbourhood where;
  std::vector<int> ranks;
};

// In order of the lowest rank.
std::vector<Group> group_ranks(const MeshSites& sites) {
  std::vector<Group> groups;
  std::map<Neighbourhood, std::size_t> numbers;
  for (int rank = 0; rank < static_cast<int>(sites.ranks.size()); ++rank) {
    const Neighbourhood where = sites.widest(rank);
    const auto [at, is_new] = numbers.try_emplace(where, groups.size());
    if (is_new) groups.push_back({where, {}});
    groups[at->second].ranks.push_back(rank);
  }
  return groups;
}

void sort_group(const MeshSites& sites, int shard, Group& group) {
  if (group.where.kind == Kind::emulated) return;
  const bool one_row = static_cast<int>(group.ranks.size()) == shard;
  std::ranges::sort(group.ranks, {}, [&](int rank) {
    const MeshSite& site = sites.at(rank);
    const int island = one_row ? 0 : site.island;
    return std::tuple{island, site.host, site.gpu, rank};
  });
}

bool all_have_gpus(const MeshSites& sites, const Group& group) {
  return std::ranges::all_of(group.ranks, [&](int rank) { return sites.at(rank).gpu >= 0; });
}

// "NVLink island", "host", ... : what the ranks of a group have between them.
std::string noun(const MeshSites& sites, const Group& group) {
  if (group.where.kind == Kind::emulated) return "emulated island";
  const Neighbourhood first = sites.nearest(group.ranks.front());
  const bool in_one_island =
      first.kind == Kind::island &&
      std::ranges::all_of(group.ranks, [&](int rank) { return sites.nearest(rank) == first; });
  if (!in_one_island) return "host";
  return fmt::format("{} island",
                     fabric_name(sites.islands[static_cast<std::size_t>(first.number)].fabric));
}

// The noun that holds for all groups.
std::string shared_noun(const MeshSites& sites, const std::vector<Group>& groups) {
  std::set<std::string> nouns;
  for (const Group& group : groups) nouns.insert(noun(sites, group));
  return nouns.size() == 1 ? *nouns.begin() : "island or host";
}

std::string with_article(const std::string& word) {
  const bool vowel_sound = std::string_view("aeiouAEIOU").find(word[0]) != std::string_view::npos ||
                           word.starts_with("NV");
  return (vowel_sound ? "an " : "a ") + word;
}

std::string sizes_text(const std::vector<Group>& groups) {
  std::map<std::size_t, std::size_t, std::greater<>> sizes;
  for (const Group& group : groups) ++sizes[group.ranks.size()];
  std::string text;
  for (const auto& [size, count] : sizes)
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", count, size);
  return text;
}

std::string explain(const MeshSites& sites, const std::vector<Group>& groups,
                    const MeshPlan& plan) {
  const bool gpus =
      std::ranges::all_of(groups, [&](const Group& group) { return all_have_gpus(sites, group); });
  const std::string what = plural(static_cast<std::size_t>(plan.shard), gpus ? "GPU" : "rank");
  const std::string where = shared_noun(sites, groups);
  if (sites.ranks.size() == 1) return "one rank: nothing to shard or replicate over";
  if (static_cast<int>(groups.size()) < plan.replicate)
    return fmt::format(
        "shard over {}, the largest number that divides the ranks of every {} ({}); replicate over "
        "{} groups",
        what, where, sizes_text(groups), plan.replicate);
  if (groups.size() == 1)
    return fmt::format("shard over all {} of {}, which holds every rank", what,
                       with_article(where));
  if (plan.shard == 1)
    return fmt::format("nothing to shard over: each {} holds 1 {}; replicate over {}", where,
                       gpus ? "GPU" : "rank", plural(groups.size(), where));
  return fmt::format("shard over {} of {}, replicate over {}", what, with_article(where),
                     plural(groups.size(), where));
}

void find_uneven(const std::vector<Group>& groups, MeshPlan& plan) {
  const auto least = std::ranges::min(groups, {}, [](const Group& group) {
                       return group.ranks.size();
                     }).ranks.size();
  const auto most = std::ranges::max(groups, {}, [](const Group& group) {
                      return group.ranks.size();
                    }).ranks.size();
  if (least == most) return;
  std::string finding = fmt::format(
      "islands or hosts hold unequal numbers of ranks ({}), so the shard axis is their "
      "common divisor {}",
      sizes_text(groups), plan.shard);
  if (least > static_cast<std::size_t>(plan.shard))
    finding += fmt::format("; with {} ranks on each it would be {}", least, least);
  plan.findings.push_back(std::move(finding));
}

void find_shared_gpus(const Topology& topology, const MeshSites& sites, MeshPlan& plan) {
  std::map<int, std::vector<int>> users;
  for (int rank = 0; rank < static_cast<int>(sites.ranks.size()); ++rank)
    if (sites.at(rank).gpu >= 0) users[sites.at(rank).gpu].push_back(rank);
  const DisplayNames names(topology);
  for (const auto& [gpu, ranks] : users)
    if (ranks.size() > 1)
      plan.findings.push_back(
          fmt::format("ranks {} share GPU {}", number_ranges(ranks),
                      names.device(topology.gpus[static_cast<std::size_t>(gpu)].id)));
}

void find_unknown(const Topology& topology, const MeshSites& sites, MeshPlan& plan) {
  std::set<int> unknown;
  for (const MeshSite& site : sites.ranks)
    if (site.island >= 0 && site.block < 0) {
      const Island& island = sites.islands[static_cast<std::size_t>(site.island)];
      if (island.state == IslandState::unknown && island.gpus.size() > 1) unknown.insert(site.host);
    }
  if (unknown.empty()) return;
  const std::string first =
      DisplayNames(topology).host(sites.hosts[static_cast<std::size_t>(*unknown.begin())]);
  plan.findings.push_back(fmt::format(
      "no source says how the GPUs of {}{} are joined; they are taken as one group", first,
      unknown.size() == 1 ? "" : " and " + plural(unknown.size() - 1, "other host")));
}

}  // namespace

MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                   const MeshPlanOptions& options) {
  const MeshSites sites = locate(topology, ranks, options);
  std::vector<Group> groups = group_ranks(sites);
  MeshPlan plan;
  plan.shard = 0;
  for (const Group& group : groups)
    plan.shard = std::gcd(plan.shard, static_cast<int>(group.ranks.size()));
  plan.replicate = static_cast<int>(ranks.size()) / plan.shard;
  for (Group& group : groups) {
    sort_group(sites, plan.shard, group);
    plan.order.insert(plan.order.end(), group.ranks.begin(), group.ranks.end());
  }
  plan.why = explain(sites, groups, plan);
  find_uneven(groups, plan);
  find_shared_gpus(topology, sites, plan);
  find_unknown(topology, sites, plan);
  for (std::string& finding : check_mesh(topology, ranks, plan, options))
    plan.findings.push_back(std::move(finding));
  return plan;
}

}  // namespace atoll_v1::atoll
