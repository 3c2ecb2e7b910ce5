// Findings about a mesh whose ranks are located already.
#pragma once

#include <vector>

#include "mesh/link_rates.hpp"

namespace atoll_v1::atoll {

// The shard groups and inner groups that reach beyond an island.
std::vector<Finding> find_crossings(const Topology& topology, const MeshSites& sites,
                                    const RankGroups& groups, LinkRates& rates,
                                    const MeshPlan& plan);

// Error(invalid_argument) unless the plan's order holds every rank once and fits its shape.
void check_order(const MeshPlan& plan, std::size_t size);

// Largest shard axis that stays inside the near groups.
int shard_inside(const RankGroups& groups, int inner);

}  // namespace atoll_v1::atoll
