// Checks a mesh, given the sites of its ranks.
#pragma once

#include <vector>

#include "mesh/link_rates.hpp"

namespace atoll_v1::atoll {

// Returns a finding for each shard group and each inner group that crosses islands.
std::vector<Finding> find_crossings(LinkRates& rates, const MeshPlan& plan);

// Throws Error(invalid_argument) unless the plan's order holds every rank once and fits its shape.
void check_order(const MeshPlan& plan, std::size_t size);

// Returns the largest shard axis that stays inside the near groups (islands or hosts).
int shard_inside(const RankGroups& groups, int inner);

}  // namespace atoll_v1::atoll
