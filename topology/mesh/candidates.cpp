#include "mesh/candidates.hpp"

#include <algorithm>
#include <map>

namespace atoll_v1::atoll {
namespace {

// Adds `unit` with every count that divides the number of units.
void add_multiples(Candidate unit, std::vector<Candidate>& all) {
  for (unit.count = 1; unit.count <= unit.units; ++unit.count)
    if (unit.units % unit.count == 0) all.push_back(unit);
}

// If an island spans hosts, returns its number of ranks on each host. 0 when the island stays on
// one host or the hosts have unequal numbers.
int ranks_on_host(const MeshSites& sites, const RankGroups& groups) {
  std::map<std::pair<int, int>, int> parts;  // ranks by near group and host
  for (std::size_t rank = 0; rank < sites.ranks.size(); ++rank)
    ++parts[{groups.near_of[rank], sites.ranks[rank].host}];
  const int first = parts.begin()->second;
  const bool equal =
      std::ranges::all_of(parts, [&](const auto& part) { return part.second == first; });
  return equal && first < groups.near.front().size() ? first : 0;
}

}  // namespace

bool is_even(const RankGroups& groups) { return alike(groups.near) && alike(groups.wide); }

Candidate widest_candidate(const MeshSites& sites, const RankGroups& groups) {
  return {.unit = groups.wide.front().size(),
          .count = 1,
          .units = static_cast<int>(groups.wide.size()),
          .noun = shared_noun(sites, groups.wide)};
}

std::vector<Candidate> candidates(const MeshSites& sites, const RankGroups& groups, int inner) {
  std::vector<Candidate> all;
  const Candidate widest = widest_candidate(sites, groups);
  const int near = groups.near.front().size();
  bool alone = true;
  for (int rank = 0; rank < static_cast<int>(sites.ranks.size()); ++rank)
    alone = alone && sites.is_alone(rank);
  if (alone) add_multiples({.unit = 1, .count = 1, .units = near, .noun = "GPU"}, all);
  if (const int host = ranks_on_host(sites, groups); host > 0)
    all.push_back({.unit = host,
                   .count = 1,
                   .units = static_cast<int>(sites.ranks.size()) / host,
                   .noun = "host"});
  if (near < widest.unit)
    add_multiples({.unit = near,
                   .count = 1,
                   .units = widest.unit / near,
                   .noun = shared_noun(sites, groups.near)},
                  all);
  // A candidate that fills a host is listed as the host.
  std::erase_if(all, [&](const Candidate& one) {
    return one.ranks() % inner != 0 || one.ranks() == widest.unit;
  });
  add_multiples(widest, all);
  std::ranges::stable_sort(all, {}, &Candidate::ranks);
  return all;
}

}  // namespace atoll_v1::atoll
