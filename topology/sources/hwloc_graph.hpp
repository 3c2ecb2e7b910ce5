// A machine that hwloc describes, read into atoll's terms.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "atoll/topology.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll::topology_sources {

// Adds one host with its packages, NUMA nodes, cores, GPUs, NICs and links. `host` brings id and
// name. Throws Error(bad_data).
void add_host(const HwlocMachine& machine, TopologyHost host, Topology& topology);

// Ids of the GPUs, switches and packages of a machine.
struct HwlocNames {
  std::string host;
  std::map<std::size_t, std::string> pci;  // by number in HwlocMachine::pci
  std::map<std::size_t, std::string> os;   // by number in HwlocMachine::os
  std::map<std::size_t, std::string> packages;
};

// Adds the links that the matrices show and says what they prove: known, none or unknown. The
// GPUs stand in `topology` already.
IslandState add_links(const HwlocMachine& machine, const HwlocNames& names, Topology& topology);

// What tells the link layer of a network adapter.
struct NicTraits {
  unsigned vendor = 0, pci_class = 0;  // of its PCI device; 0: unknown
  std::string_view name = {}, subtype = {}, state = {};
  std::optional<long long> lid = {};
};

// TopologyNic::layer; "" when nothing tells.
std::string_view nic_layer(const NicTraits& nic);

}  // namespace atoll_v1::atoll::topology_sources
