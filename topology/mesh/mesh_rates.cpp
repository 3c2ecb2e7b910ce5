// Computes the rates of the axes of a mesh.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "atoll/level_schedule.hpp"
#include "mesh/mesh_check.hpp"
#include "mesh/step_model.hpp"

namespace atoll_v1::atoll {
namespace {

void take_slower(GroupRate& slowest, const GroupRate& other) {
  slowest.gbyte_s = std::min(slowest.gbyte_s, other.gbyte_s);
  slowest.latency_us = std::max(slowest.latency_us, other.latency_us);
  slowest.is_assumed = slowest.is_assumed || other.is_assumed;
}

constexpr GroupRate fastest{.gbyte_s = std::numeric_limits<double>::infinity()};

// Collects, over many groups, the slowest rate inside hosts and the slowest rate between hosts.
class SlowestLevels {
 public:
  SlowestLevels(const MeshSites& sites, StepModel& model) : sites_(sites), model_(model) {}

  void add(std::span<const int> group) {
    std::vector<int> hosts;
    for (const int rank : group) hosts.push_back(sites_.at(rank).host);
    const auto inner = at_index(atoll_levels::HostLayout(hosts).ranks_per_host());
    everywhere_ = everywhere_ && inner > 0;
    if (!everywhere_) return;
    for (std::size_t first = 0; first < group.size(); first += inner) {
      const auto here = group.subspan(first, inner);
      take_slower(slowest_.inside, model_.rate({here.begin(), here.end()}));
    }
    std::vector<int> column;
    for (std::size_t first = 0; first < inner; ++first) {
      column.clear();
      for (std::size_t rank = first; rank < group.size(); rank += inner)
        column.push_back(group[rank]);
      take_slower(slowest_.across, model_.rate(column));
    }
  }
  LevelRates found() const { return everywhere_ ? slowest_ : LevelRates{}; }

 private:
  const MeshSites& sites_;
  StepModel& model_;
  LevelRates slowest_{fastest, fastest};
  bool everywhere_ = true;
};

}  // namespace

GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                     const std::vector<int>& group, const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  for (const int rank : group)
    if (rank < 0 || at_index(rank) >= ranks.size())
      refuse("rank {} of a group does not exist: there are {} ranks", rank, ranks.size());
  return StepModel(rates).rate(group);
}

MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                     const MeshPlan& plan, const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  check_order(plan, ranks.size());
  StepModel model(rates);
  MeshRates found{.shard = fastest, .replicate = fastest, .world = model.rate(plan.order)};
  SlowestLevels shard(rates.sites, model), replicate(rates.sites, model), world(rates.sites, model);
  world.add(plan.order);
  each_shard_group(plan, [&](const std::vector<int>& group) {
    take_slower(found.shard, model.rate(group));
    shard.add(group);
  });
  each_replicate_group(plan, [&](const std::vector<int>& group) {
    take_slower(found.replicate, model.rate(group));
    replicate.add(group);
  });
  found.shard_levels = shard.found();
  found.replicate_levels = replicate.found();
  found.world_levels = world.found();
  return found;
}

}  // namespace atoll_v1::atoll
