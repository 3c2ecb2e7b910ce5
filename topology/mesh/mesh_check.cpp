// Finds the groups of a mesh that cross islands, and the bandwidth that this costs.
#include "mesh/planning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Kind = Neighbourhood::Kind;

// Limits the findings of one mesh, since a large job would repeat them for every row.
constexpr std::size_t most_findings = 8;
constexpr std::size_t most_parts = 4;

// The near groups (islands or hosts) and the hosts of ranks that communicate as one group.
struct Parts {
  std::map<int, int> members;  // number of ranks in each near group, by the number of the group
  std::set<int> hosts;
};

class Crossings {
 public:
  explicit Crossings(LinkRates& rates)
      : sites_(rates.sites), groups_(rates.groups), rates_(rates) {}

  // Adds a finding, unless all ranks are in one near group (island or host). `inside` is the
  // largest shard axis that stays inside the near groups. `fits` is true if the shape of the mesh
  // fits into them: then only the order of the ranks makes this group span several of them.
  void look(std::string_view noun, int number, const std::vector<int>& ranks, int inside,
            bool fits) {
    const auto near_of = [&](int rank) { return groups_.near_of[at_index(rank)]; };
    const auto other =
        std::ranges::find_if(ranks, [&](int rank) { return near_of(rank) != near_of(ranks[0]); });
    if (other == ranks.end()) return;
    if (found_.size() == most_findings) {
      ++unsaid_;
      return;
    }
    Parts parts;
    for (const int rank : ranks) {
      ++parts.members[near_of(rank)];
      parts.hosts.insert(sites_.at(rank).host);
    }
    Finding& finding =
        found_.emplace_back(describe(fmt::format("{} {}", noun, number), parts, inside));
    if (!fits) return;
    finding.evidence += fmt::format(
        ". The order of the ranks is the reason, not the shape: rank {} is on {}, rank {} on {}",
        ranks[0], label(near_of(ranks[0])), *other, label(near_of(*other)));
    finding.fix =
        "leave out --mesh (Mesh::plan orders the ranks by island), or number the ranks host by "
        "host (mpirun --map-by ppr:N:node, srun --distribution=block)";
  }

  void take(std::string_view noun, std::vector<Finding>& all) {
    if (unsaid_ > 0)
      found_.push_back({.id = "mesh_crosses_islands",
                        .severity = Severity::warning,
                        .evidence = fmt::format("{} {} islands as well",
                                                plural(unsaid_, fmt::format("other {}", noun)),
                                                unsaid_ == 1 ? "crosses" : "cross")});
    std::ranges::move(found_, std::back_inserter(all));
  }

 private:
  Finding describe(const std::string& name, const Parts& parts, int inside) {
    Finding finding{.id = "mesh_crosses_islands", .severity = Severity::warning};
    std::string joined;
    std::size_t shown = 0;
    for (const auto& [near, members] : parts.members) {
      if (++shown > most_parts) break;
      joined += fmt::format("{}{} ({})", shown == 1 ? "" : ", ", label(near),
                            plural(at_index(members), "rank"));
    }
    if (parts.members.size() > most_parts)
      joined += fmt::format(" and {} more", parts.members.size() - most_parts);
    finding.evidence = fmt::format("{} crosses islands: it joins {}", name, joined);
    if (inside > 1)
      finding.fix = fmt::format("a shard axis of {} stays inside the islands", inside);
    if (groups_.near.front().where.kind == Kind::emulated) return finding;
    finding.evidence += cost(parts);
    finding.consequence =
        "every gather and reduction of the group waits for the links that it crosses";
    for (const int host : parts.hosts) finding.subjects.push_back(sites_.hosts[at_index(host)]);
    return finding;
  }

  std::string label(int near) {
    if (!names_) names_.emplace(rates_.topology);
    const RankGroup& group = groups_.near[at_index(near)];
    const Neighbourhood& where = group.where;
    switch (where.kind) {
      case Kind::emulated:
        return fmt::format("emulated island {}", where.number);
      case Kind::island: {
        const Island& island = sites_.islands[at_index(where.number)];
        return fmt::format("{} island {}", fabric_name(island.fabric), names_->gpus(island.gpus));
      }
      case Kind::host:
        if (group.size() == 1 && sites_.is_alone(group.ranks.front()))
          return "unlinked " +
                 names_->device(
                     rates_.topology.gpus[at_index(sites_.at(group.ranks.front()).gpu)].id);
        return "host " + names_->host(sites_.hosts[at_index(where.number)]);
    }
    return "";
  }

  std::optional<double> slowest_between(const Parts& parts) {
    double least = std::numeric_limits<double>::infinity();
    for (const int host : parts.hosts) {
      const auto rate = parts.hosts.size() > 1 ? rates_.network(host) : rates_.pcie(host);
      if (!rate) return std::nullopt;
      least = std::min(least, *rate);
    }
    return least;
  }

  // Compares the rate between islands (or hosts) with the rate inside an island, if both are known.
  std::string cost(const Parts& parts) {
    const std::optional<double> across = slowest_between(parts);
    std::optional<double> inside;
    for (const auto& [near, members] : parts.members)
      if (groups_.near[at_index(near)].where.kind == Kind::island)
        if (const auto rate = rates_.intra(near)) inside = std::max(inside.value_or(0), *rate);
    const std::string_view user = all_have_gpus(sites_) ? "GPU" : "rank";
    std::string text =
        parts.hosts.size() > 1 ? ", over the network" : ", over the PCIe links of the host";
    text += across ? fmt::format(" at {:.4g} GB/s a {}", *across, user)
                   : ", whose rate no source provides,";
    if (inside && across) text += fmt::format(" instead of {:.4g} GB/s", *inside);
    if (inside && !across) text += fmt::format(" instead of {:.4g} GB/s a {}", *inside, user);
    if (inside && across && *inside > *across)
      text += fmt::format(", {:.3g} times less", *inside / *across);
    if (text.ends_with(',')) text.pop_back();
    return text;
  }

  const MeshSites& sites_;
  const RankGroups& groups_;
  LinkRates& rates_;
  std::optional<DisplayNames> names_;  // device names for messages; empty until the first finding
  std::vector<Finding> found_;
  std::size_t unsaid_ = 0;
};

}  // namespace

void check_order(const MeshPlan& plan, std::size_t size) {
  const bool positive = plan.replicate >= 1 && plan.shard >= 1 && plan.tensor >= 1;
  const auto rows = static_cast<std::int64_t>(plan.replicate) * plan.shard;
  const auto count = static_cast<std::int64_t>(size);
  if (!positive || rows > count || rows * plan.tensor != count)
    refuse("a mesh of {}x{}{} does not fit {}", plan.replicate, plan.shard,
           plan.tensor == 1 ? "" : fmt::format("x{}", plan.tensor), plural(size, "rank"));
  std::vector<bool> seen(size, false);
  for (const int rank : plan.order) {
    const auto number = at_index(rank);
    if (rank < 0 || number >= size || seen[number])
      refuse("the order of a mesh names rank {} twice, or the rank is out of range", rank);
    seen[number] = true;
  }
  if (plan.order.size() != size)
    refuse("the order of a mesh names {} of {} ranks", plan.order.size(), size);
}

int shard_in_islands(const RankGroups& groups, int tensor) {
  int inside = 0;
  for (const RankGroup& group : groups.near) inside = std::gcd(inside, group.size());
  return inside / tensor;
}

std::vector<Finding> find_crossings(LinkRates& rates, const MeshPlan& plan) {
  const int least = shard_in_islands(rates.groups, 1);
  const int inside = least / plan.tensor;
  const bool tensor_fits = least % plan.tensor == 0;
  const bool shard_fits = tensor_fits && inside % plan.shard == 0;
  std::vector<Finding> findings;
  Crossings shards(rates);
  int number = 0;
  std::vector<int> first;  // near groups (islands or hosts) of the row's first shard group
  each_shard_group(plan, [&](const std::vector<int>& ranks) {
    std::vector<int> near;
    for (const int rank : ranks) near.push_back(rates.groups.near_of[at_index(rank)]);
    const bool is_first = number % plan.tensor == 0;
    // One finding covers all groups of a row that cross the same islands.
    if (is_first || near != first) shards.look("shard group", number, ranks, inside, shard_fits);
    if (is_first) first = std::move(near);
    ++number;
  });
  shards.take("shard group", findings);
  Crossings tensors(rates);
  for (int row = 0; row < plan.replicate * plan.shard && plan.tensor > 1; ++row) {
    const auto begin = plan.order.begin() + std::ptrdiff_t{row} * plan.tensor;
    tensors.look("tensor group", row, {begin, begin + plan.tensor}, inside, tensor_fits);
  }
  tensors.take("tensor group", findings);
  return findings;
}

std::vector<Finding> check_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                                const MeshPlan& plan, const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  check_order(plan, ranks.size());
  return find_crossings(rates, plan);
}

}  // namespace atoll_v1::atoll
