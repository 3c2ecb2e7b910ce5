// Live sources of a topology. A source is one file in this folder that defines one LiveSource,
// which is declared below and listed in topology.cpp. No other code knows the source.
#pragma once

#include <string>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

// Request to describe this host. Live sources run in the order of their list on one Topology: the
// first adds host, GPUs and NICs, later ones add what it could not see. A source that finds nothing
// leaves the topology unchanged and sets the host's fact "source.NAME" to the reason. It throws
// Error only when the host cannot be described at all. Tests replace the default paths by captured
// trees and libraries.
struct LiveRequest {
  std::string host_id;
  std::string host_name;
  std::string sysfs = "/sys";
  std::string procfs = "/proc";
  std::string dev = "/dev";
  std::string etc = "/etc";
  std::string nvml = "libnvidia-ml.so.1";
};

struct LiveSource {
  void (*look)(const LiveRequest& request, Topology& topology);
};

extern const LiveSource hwloc_live;   // host, packages, NUMA nodes, GPUs, NICs, NVLink matrix
extern const LiveSource nvml;         // GPUs with links, fabric and health; loads NVML by dlopen
extern const LiveSource sysfs_ports;  // state, link layer, rate and counters of NIC ports
extern const LiveSource sysfs_pci;    // PCIe links, ACS and read requests of GPUs and NICs
extern const LiveSource environment;  // NCCL settings, limits, container, kernel modules

}  // namespace atoll_v1::atoll::topology_sources
