// Reads a host's network interfaces from /sys/class/net.
#pragma once

#include <filesystem>
#include <string>

#include "atoll/topology.hpp"
#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {

// Lists the interfaces in the host's facts and adds Slingshot interfaces as NICs. When the host has
// no NIC yet, adds all other interfaces as well, except the loopback interface.
void add_netdevs(const LiveRequest& request, TopologyHost& host, Topology& topology);

// Returns the bus id of a class device (/sys/class/net/eth0/device); "" if it is not a PCI device.
std::string busid_of_class_device(const std::filesystem::path& device);

}  // namespace atoll_v1::atoll::topology_sources
