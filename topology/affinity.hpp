// Rules by which affinity, rails and mesh planning select NICs, and the bandwidth that NICs reach.
#pragma once

#include <optional>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// True if the NIC has a name that Linux gives to network interfaces, and not to RDMA devices.
bool has_interface_name(const TopologyNic& nic);

// True if the NIC is hardware and is not known to be down.
bool may_be_active(const TopologyNic& nic);

// Returns the NICs of a host that may be up (none is known to be down) and that belong to the
// fabric that joins the hosts.
std::vector<const TopologyNic*> eligible_nics(const std::vector<const TopologyNic*>& nics);

// Returns what the PCIe links can carry for each NIC in GB/s, in the order of Topology::nics. NICs
// in one slot share a link. Empty for an unknown link, and on virtual machines, which show emulated
// links.
std::vector<std::optional<double>> pcie_limits_gbyte_s(const Topology& topology);

// Returns the fraction of the NICs' bandwidth that all_gathers of 512 MB reach over at least two
// hosts: the mean for 256 MB and 1 GB in the table of collective_time.cpp.
double nic_efficiency(int hosts);

}  // namespace atoll_v1::atoll
