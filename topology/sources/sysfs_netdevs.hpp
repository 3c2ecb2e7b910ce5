// The network interfaces of a host, as the kernel shows them under /sys/class/net.
#pragma once

#include <filesystem>
#include <string>

#include "atoll/topology.hpp"
#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {

// Lists the interfaces in the host's facts and adds Slingshot's as NICs; all others become NICs
// too where the host has no NIC yet. The loopback interface never does.
void add_netdevs(const LiveRequest& request, TopologyHost& host, Topology& topology);

// The bus id of a device of a class (/sys/class/net/eth0/device); "" when it is not on the PCI bus.
std::string busid_of_class_device(const std::filesystem::path& device);

}  // namespace atoll_v1::atoll::topology_sources
