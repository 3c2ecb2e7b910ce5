// The NICs of ranks that use CPU memory.
#pragma once

#include <string>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

struct CoresAffinity {
  std::string host;  // id
  int numa = -1;     // NUMA node of the cores of a rank; -1: the rank is bound to no single node
  Affinity affinity;
};

// Returns what find_cpu_affinity() chooses on each host with NICs: for ranks that are bound to no
// node, unless the host has only one, then for each node that has a GPU or a NIC. Other nodes have
// the NICs of the first. If no NIC is active, that is the only element of its host.
std::vector<CoresAffinity> find_cores_affinity(const Topology& topology);

}  // namespace atoll_v1::atoll
