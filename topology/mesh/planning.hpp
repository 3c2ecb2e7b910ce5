// The parts of mesh planning: the memory that a model needs, meshes over unequal islands, and the
// check of a mesh.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/step_model.hpp"

namespace atoll_v1::atoll {

// --- memory.cpp ---

struct MemoryNeed {
  double state = 0;      // bytes for the state of the whole model
  double gpu_gives = 0;  // bytes that the smallest GPU provides, without the reserve
  std::string product;   // text such as "70e9 parameters x 16 bytes = 1043 GiB"
  std::string gives;     // text such as "64 GiB a GPU (80 GiB less 20 %)"

  bool fits(double gpus) const { return gpus >= gpus_needed(); }
  double gpus_needed() const;
};

// Returns nothing if the options do not give the number of parameters. Throws
// Error(invalid_argument) for invalid options, and when neither the options nor the topology give
// the memory of a GPU.
std::optional<MemoryNeed> memory_need(const Topology& topology, const std::vector<RankSite>& ranks,
                                      const MeshSites& sites, const MeshPlanOptions& options);

// Throws Error(invalid_argument) with a text that states how much memory the model lacks.
[[noreturn]] void refuse_model(const MemoryNeed& need, const MeshSites& sites);

// Formats bytes: "1043 GiB".
std::string gib_text(double bytes);

// --- uneven.cpp: meshes over unequal islands or hosts ---

struct MeshRequest {
  LinkRates& rates;
  const MeshPlanOptions& options;
  const std::optional<MemoryNeed>& need;
};

// Arranges all ranks in a mesh with a shard axis of length `shard`.
MeshPlan arrange(const RankGroups& groups, int shard, int tensor);

// Plans the members shape, order, left_out and why of a mesh, and adds the finding "mesh_uneven".
MeshPlan plan_uneven(const MeshRequest& request);

// --- mesh_check.cpp ---

// Returns a finding for each shard group and each tensor group that crosses islands.
std::vector<Finding> find_crossings(LinkRates& rates, const MeshPlan& plan);

// Throws Error(invalid_argument) unless the plan's order holds every rank once and fits its shape.
void check_order(const MeshPlan& plan, std::size_t size);

// Returns the largest shard axis that stays inside the near groups (islands or hosts).
int shard_inside(const RankGroups& groups, int tensor);

}  // namespace atoll_v1::atoll
