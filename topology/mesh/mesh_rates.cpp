// What the axes of a mesh carry.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "mesh/mesh_check.hpp"
#include "mesh/step_model.hpp"

namespace atoll_v1::atoll {
namespace {

std::size_t at_index(int number) { return static_cast<std::size_t>(number); }

void take_slower(GroupRate& slowest, const GroupRate& other) {
  slowest.gbyte_s = std::min(slowest.gbyte_s, other.gbyte_s);
  slowest.latency_us = std::max(slowest.latency_us, other.latency_us);
  slowest.is_assumed = slowest.is_assumed || other.is_assumed;
}

}  // namespace

GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                     const std::vector<int>& group, const MeshPlanOptions& options) {
  const MeshSites sites = locate(topology, ranks, options);
  for (const int rank : group)
    if (rank < 0 || at_index(rank) >= ranks.size())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a group names rank {} of {}", rank, ranks.size()));
  const RankGroups groups = group_ranks(sites);
  LinkRates rates(topology, sites, groups);
  return StepModel(sites, groups, rates).rate(group);
}

MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                     const MeshPlan& plan, const MeshPlanOptions& options) {
  const MeshSites sites = locate(topology, ranks, options);
  check_order(plan, ranks.size());
  const RankGroups groups = group_ranks(sites);
  LinkRates rates(topology, sites, groups);
  StepModel model(sites, groups, rates);
  const auto rank_at = [&](int r, int s, int i) {
    return plan.order[at_index((r * plan.shard + s) * plan.inner + i)];
  };
  constexpr GroupRate fastest{.gbyte_s = std::numeric_limits<double>::infinity()};
  MeshRates found{.shard = fastest, .replicate = fastest, .world = model.rate(plan.order)};
  std::vector<int> members;
  for (int i = 0; i < plan.inner; ++i) {
    for (int r = 0; r < plan.replicate; ++r) {
      members.clear();
      for (int s = 0; s < plan.shard; ++s) members.push_back(rank_at(r, s, i));
      take_slower(found.shard, model.rate(members));
    }
    for (int s = 0; s < plan.shard; ++s) {
      members.clear();
      for (int r = 0; r < plan.replicate; ++r) members.push_back(rank_at(r, s, i));
      take_slower(found.replicate, model.rate(members));
    }
  }
  return found;
}

}  // namespace atoll_v1::atoll
