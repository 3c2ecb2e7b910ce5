// How much memory the sharded state of a model needs, and how much memory each GPU has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

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

}  // namespace atoll_v1::atoll
