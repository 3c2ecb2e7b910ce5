// Conversion of a machine that hwloc describes to a Topology.
#pragma once

#include <map>
#include <string>

#include "atoll/topology.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll::topology_sources {

// Adds one host with its packages, NUMA nodes, cores, GPUs, NICs and links. `host` provides id and
// name. Throws Error(bad_data).
void add_host(const HwlocMachine& machine, TopologyHost host, Topology& topology);

// Ids that add_host() gave to the GPUs, switches and packages of a machine.
struct HwlocNames {
  std::string host;
  std::map<HwlocEnd, std::string> ids;
};

// Adds the links of the matrices and returns whether they are known, none or unknown. `topology`
// must contain the host's GPUs already.
IslandState add_links(const HwlocMachine& machine, const HwlocNames& names, Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources
