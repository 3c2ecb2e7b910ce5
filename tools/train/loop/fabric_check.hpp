// Checks the links before a run (--check-fabric): what the doctor of atoll-topo finds, and whether
// the collectives of the run reach the rates that --fabric-rate or the topology promises.
#pragma once

#include <string>
#include <vector>

#include "atoll/mesh.hpp"
#include "loop/setup.hpp"

namespace train {

// Bus bandwidth of a collective on all groups of a mesh axis at once, the slowest of all ranks.
// GB/s = 1e9 bytes per second, as nccl-tests defines it.
struct FabricRate {
  std::string axis;
  int ranks = 0;
  std::string collective;
  double measured = 0;
  double promised = 0;  // GB/s that --fabric-rate or the topology promises; 0: unknown
};

// "all_gather on axis shard (8 ranks): busbw 312.4 GB/s, 87 % of 360 GB/s"
std::string to_line(const FabricRate& rate);

// Returns the text of the error if a measured rate is below `share` of the promised one; "" if none
// is. Unknown rates are not judged.
std::string fabric_failure(const std::vector<FabricRate>& rates, double share);

// Logs what it finds on rank 0. Takes a few seconds. Collective. Throws Error(unsupported) on
// all ranks for a finding that is an error and for a rate below `share`.
void check_fabric(atoll::World& world, const RunOptions& options, const Setup& setup, double share);

}  // namespace train
