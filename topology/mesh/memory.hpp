// What the state of a full shard needs, and what a GPU gives to it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

struct MemoryNeed {
  double state = 0;      // bytes of the whole model
  double gpu_gives = 0;  // bytes of the smallest GPU, less the reserve
  std::string product;   // "70e9 parameters x 16 bytes = 1043 GiB"
  std::string gives;     // "64 GiB a GPU (80 GiB less 20 %)"

  bool fits(double gpus) const { return gpus >= gpus_needed(); }
  double gpus_needed() const;
};

// Empty without `params`. Error(invalid_argument) for options that make no sense, and when the
// memory of a GPU is neither in the options nor in the topology.
std::optional<MemoryNeed> memory_need(const Topology& topology, const std::vector<RankSite>& ranks,
                                      const MeshSites& sites, const MeshPlanOptions& options);

// Error(invalid_argument), which names what is missing.
[[noreturn]] void refuse_model(const MemoryNeed& need, const MeshSites& sites);

// "1043 GiB"
std::string gib_text(double bytes);

}  // namespace atoll_v1::atoll
