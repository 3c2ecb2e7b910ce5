// Chooses the mesh that suits a machine.
//
// Idea: a sharded step gathers every parameter over the shard axis several times and crosses the
// replicate axis once, so the shard axis should use the fastest links. The axis contains all
// ranks that these links join, or more if the model needs their memory. The *near* group of a rank
// is its island; its *wide* group is the larger of island and host (mesh_sites.hpp). Steps:
//   1. locate the ranks and group them;
//   2. when all near groups have one size, and all wide groups too, use the wide group as shard
//      group, or the smallest group that holds the model. Otherwise compare modelled times
//      (uneven.cpp);
//   3. order the ranks by host, rail and GPU, so that replicate groups join ranks in equal
//      positions of the shard groups. On machines with rails, equal positions share a rail.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "mesh/planning.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// Throws an error unless the ranks of each tensor group can be inside one island.
void check_tensor(const LinkRates& rates, int tensor) {
  const auto do_not_fit = [&](const std::string& why) {
    refuse("{} tensor ranks do not fit: {}", tensor, why);
  };
  if (tensor < 1) do_not_fit("there must be at least 1 tensor rank");
  if (tensor == 1) return;
  const DisplayNames names(rates.topology);
  for (const RankGroup& group : rates.groups.near) {
    const int first = group.ranks.front();
    const std::string host = names.host(rates.sites.hosts[at_index(rates.sites.at(first).host)]);
    for (const int rank : group.ranks)
      if (group.where.kind == Neighbourhood::Kind::host && rates.sites.is_alone(rank))
        do_not_fit(fmt::format("the GPUs of {} have no links, so an island has 1 GPU", host));
    if (group.size() % tensor != 0)
      do_not_fit(fmt::format("the {} on {} has {}, a number that {} does not divide",
                             noun(rates.sites, group), host, plural(at_index(group.size()), "rank"),
                             tensor));
  }
}

// --- candidates for the shard axis ---
//
// When islands and hosts are equal, each candidate contains the smaller ones: k GPUs of a host
// without links; an island; k islands of a host; a host; k hosts, or k islands that span hosts. k
// divides the number of units, so that the mesh uses every rank.

// A candidate for the shard axis: `count` neighbouring units (islands, hosts) of `unit` ranks each.
struct Candidate {
  int unit = 1;
  int count = 1;
  int units = 1;     // total number of units, of which a candidate uses `count`
  std::string noun;  // name of a unit: "host", "NVLink island"
  int ranks() const { return unit * count; }
};

// Adds a candidate for each count that divides the number of units.
void add_multiples(Candidate unit, std::vector<Candidate>& all) {
  for (unit.count = 1; unit.count <= unit.units; ++unit.count)
    if (unit.units % unit.count == 0) all.push_back(unit);
}

// If an island spans hosts, returns its number of ranks on each host. 0 when the island stays on
// one host or the hosts have unequal numbers.
int ranks_on_host(const MeshSites& sites, const RankGroups& groups) {
  std::map<std::pair<int, int>, int> parts;  // number of ranks in each near group and host
  for (std::size_t rank = 0; rank < sites.ranks.size(); ++rank)
    ++parts[{groups.near_of[rank], sites.ranks[rank].host}];
  const int first = parts.begin()->second;
  const bool equal =
      std::ranges::all_of(parts, [&](const auto& part) { return part.second == first; });
  return equal && first < groups.near.front().size() ? first : 0;
}

// Returns the candidate that is one wide group: the larger of island and host.
Candidate widest_candidate(const MeshSites& sites, const RankGroups& groups) {
  return {.unit = groups.wide.front().size(),
          .count = 1,
          .units = static_cast<int>(groups.wide.size()),
          .noun = shared_noun(sites, groups.wide)};
}

// Returns the candidates for the shard axis in ascending size. Each is a multiple of `tensor`
// ranks.
std::vector<Candidate> candidates(const MeshSites& sites, const RankGroups& groups, int tensor) {
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
  // Candidates as large as a wide group are dropped, because the wide groups are added below.
  std::erase_if(all, [&](const Candidate& one) {
    return one.ranks() % tensor != 0 || one.ranks() == widest.unit;
  });
  add_multiples(widest, all);
  std::ranges::stable_sort(all, {}, &Candidate::ranks);
  return all;
}

// --- texts for people ---

// Describes the memory of `count` units of a candidate.
std::string amount(const Candidate& one, int count, const MemoryNeed& need) {
  const std::string memory = gib_text(one.unit * count * need.gpu_gives);
  if (count > 1) return fmt::format("{} hold {}", plural(at_index(count), one.noun), memory);
  return one.unit == 1 ? fmt::format("{} holds {}", with_article(one.noun), memory)
                       : fmt::format("{} of {} holds {}", with_article(one.noun), one.unit, memory);
}

// Explains why no smaller candidate holds the model. `chosen` indexes `all`.
std::string memory_text(const std::vector<Candidate>& all, std::size_t chosen,
                        const MemoryNeed& need) {
  std::string text = fmt::format("{}, at {}: ", need.product, need.gives);
  const Candidate& taken = all[chosen];
  const std::string size = gib_text(taken.ranks() * need.gpu_gives);
  if (chosen == 0) return text + amount(taken, taken.count, need) + "; ";
  if (taken.count == 1)
    return text + fmt::format("{}; {} of {} ({}) is the smallest group that holds the model; ",
                              amount(all[chosen - 1], all[chosen - 1].count, need),
                              with_article(taken.noun), taken.unit, size);
  const int enough = static_cast<int>(need.gpus_needed() - 1) / taken.unit + 1;
  text += amount(taken, 1, need);
  if (enough > 2) text += ", " + amount(taken, enough - 1, need);
  const std::string many = fmt::format("{} {}s ({})", taken.count, taken.noun, size);
  if (enough == taken.count)
    return text + fmt::format("; {} are the fewest that hold the model; ", many);
  return text +
         fmt::format("; {} ({}) would hold the model, but {} does not divide {}, so {} are used; ",
                     plural(at_index(enough), taken.noun),
                     gib_text(enough * taken.unit * need.gpu_gives), enough, taken.units, many);
}

// Describes a row: "8 GPUs", or "4 x 2 GPUs (2 below the shard axis)" with tensor ranks.
std::string row_text(const MeshPlan& plan, std::string_view user) {
  if (plan.tensor == 1) return plural(at_index(plan.shard), user);
  return fmt::format("{} x {} ({} below the shard axis)", plan.shard,
                     plural(at_index(plan.tensor), user), plan.tensor);
}

std::string explain(const MeshSites& sites, const Candidate& taken, const MeshPlan& plan) {
  if (sites.ranks.size() == 1) return "one rank: nothing to shard or replicate over";
  const std::string_view user = all_have_gpus(sites) ? "GPU" : "rank";
  const bool of_gpus = taken.noun == "GPU";
  const std::string across = plural(at_index(plan.replicate), taken.noun);
  if (plan.shard == 1) {
    const std::string each =
        fmt::format(": each {} holds {}{}", taken.noun, plural(at_index(plan.tensor), user),
                    plan.tensor == 1 ? "" : ", all below the shard axis");
    return fmt::format("nothing to shard over{}; replicate over {}", of_gpus ? "" : each, across);
  }
  std::string text =
      fmt::format("shard over {}{}", plan.replicate == 1 ? "all " : "", row_text(plan, user));
  if (!of_gpus)
    text += " of " + (taken.count > 1 ? plural(at_index(taken.count), taken.noun)
                                      : with_article(taken.noun));
  if (plan.replicate == 1) return taken.count > 1 ? text : text + ", which holds every rank";
  return text + ", replicate over " +
         (taken.count > 1 ? fmt::format("{} such groups", plan.replicate) : across);
}

MeshPlan plan_even(const MeshRequest& request) {
  const MeshSites& sites = request.rates.sites;
  const int tensor = request.options.tensor;
  Candidate taken = widest_candidate(sites, request.rates.groups);
  std::string memory;
  if (request.need) {
    const std::vector<Candidate> all = candidates(sites, request.rates.groups, tensor);
    const auto fits = std::ranges::find_if(
        all, [&](const Candidate& one) { return request.need->fits(one.ranks()); });
    taken = *fits;  // not the end: the whole job is a candidate, and it holds the model
    memory = memory_text(all, at_index(static_cast<int>(fits - all.begin())), *request.need);
  }
  MeshPlan plan = arrange(request.rates.groups, taken.ranks() / tensor, tensor);
  plan.why = memory + explain(sites, taken, plan);
  return plan;
}

void find_unknown(const Topology& topology, const MeshSites& sites, MeshPlan& plan) {
  std::set<int> unknown;
  for (const MeshSite& site : sites.ranks)
    if (site.island >= 0 && site.block < 0) {
      const Island& island = sites.islands[at_index(site.island)];
      if (island.state == IslandState::unknown && island.gpus.size() > 1) unknown.insert(site.host);
    }
  if (unknown.empty()) return;
  Finding finding{.id = "links_unknown", .severity = Severity::info};
  for (const int host : unknown) finding.subjects.push_back(sites.hosts[at_index(host)]);
  finding.evidence =
      fmt::format("no source says how the GPUs of {}{} are joined",
                  DisplayNames(topology).host(finding.subjects.front()),
                  unknown.size() == 1 ? "" : " and " + plural(unknown.size() - 1, "other host"));
  finding.consequence =
      "they are planned as one island; if they are not one, shard groups cross islands";
  finding.fix = "add a source that shows links: NVML, or `nvidia-smi topo -m`";
  plan.findings.push_back(std::move(finding));
}

}  // namespace

MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                   const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  check_tensor(rates, options.tensor);
  const std::optional<MemoryNeed> need = memory_need(topology, ranks, rates.sites, options);
  if (need && !need->fits(static_cast<double>(ranks.size()))) refuse_model(*need, rates.sites);
  const MeshRequest request{rates, options, need};
  const bool is_even = alike(rates.groups.near) && alike(rates.groups.wide);
  MeshPlan plan = is_even ? plan_even(request) : plan_uneven(request);
  find_unknown(topology, rates.sites, plan);
  for (Finding& finding : find_crossings(rates, plan)) {
    if (need) {  // the model needs shard groups of this size
      finding.severity = Severity::info;
      finding.fix = "use GPUs with more memory, or fewer bytes for each parameter";
    }
    plan.findings.push_back(std::move(finding));
  }
  return plan;
}

}  // namespace atoll_v1::atoll
