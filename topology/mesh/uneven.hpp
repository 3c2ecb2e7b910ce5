// The mesh of a job whose islands or hosts are unequal.
#pragma once

#include <optional>

#include "mesh/memory.hpp"
#include "mesh/step_model.hpp"

namespace atoll_v1::atoll {

struct MeshRequest {
  const Topology& topology;
  const MeshSites& sites;
  const RankGroups& groups;
  const MeshPlanOptions& options;
  const std::optional<MemoryNeed>& need;
  LinkRates& rates;
};

// The order of all ranks for a shard axis of `shard`.
MeshLayout arrange(const RankGroups& groups, int shard, int inner);

// Shape, order, left_out, why, and the finding "mesh_uneven".
MeshPlan plan_uneven(const MeshRequest& request);

}  // namespace atoll_v1::atoll
