// Data that follows from a topology: switches that `nvidia-smi topo -m` hides, PCIe limits of NICs,
// and the NICs of ranks that use CPU memory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Replaces direct NVLinks between GPUs by links to a switch when the GPUs cannot have so many
// links.
//
// `nvidia-smi topo -m` cannot show switches: it repeats all links of a GPU for every peer that the
// GPU reaches through a switch. So if a GPU seems to have more direct NVLinks than its model
// supports, this GPU and all GPUs that it reaches are linked to a switch. Each GPU gets the largest
// number of links that it has with one peer. `most_links_of_unknown` is the limit for GPUs of
// unknown model; 0 means no limit. Two GPUs of unknown model with exactly this number of links
// between them are also assumed to be on a switch.
void show_hidden_switches(Topology& topology, int most_links_of_unknown = 0);

// Returns the Gbit/s that the PCIe link carries for each NIC, in the order of Topology::nics. Empty
// unless they are less than the rate of the port, or the only known limit of the NIC.
std::vector<std::optional<double>> find_pcie_limits(const Topology& topology);

struct CoresAffinity {
  std::string host;  // id of the host
  int numa = -1;     // NUMA node of the cores of a rank; -1: the rank is bound to no single node
  Affinity affinity;
};

// Returns what find_cpu_affinity() chooses on each host with NICs. The first element of a host is
// the choice for ranks that are bound to no single NUMA node; a host with one node has no such
// element. Then comes an element for each node that has a GPU or a NIC. Ranks on other nodes use
// the NICs of the first element. If no NIC is active, a host has only the first element.
std::vector<CoresAffinity> find_cores_affinity(const Topology& topology);

// True if `reason` says that the machine lacks what a check of the doctor examines, such as GPUs,
// and not that facts are missing.
bool has_nothing_to_examine(std::string_view reason);

}  // namespace atoll_v1::atoll
