// Planning of meshes over unequal islands or hosts.
#pragma once

#include <optional>

#include "mesh/memory.hpp"
#include "mesh/step_model.hpp"

namespace atoll_v1::atoll {

struct MeshRequest {
  LinkRates& rates;
  const MeshPlanOptions& options;
  const std::optional<MemoryNeed>& need;
};

// Arranges all ranks in a mesh with a shard axis of length `shard`.
MeshPlan arrange(const RankGroups& groups, int shard, int inner);

// Plans the members shape, order, left_out and why of a mesh, and adds the finding "mesh_uneven".
MeshPlan plan_uneven(const MeshRequest& request);

}  // namespace atoll_v1::atoll
