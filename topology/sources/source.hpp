// Where a topology comes from. A source is one file in this folder that defines one descriptor,
// declared below and listed in topology.cpp; nothing else knows it.
#pragma once

#include <string>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

// Looks at this host. Live sources run in the order of their list on one Topology: the first makes
// hosts, GPUs and NICs, later ones add what it could not see. A source that finds nothing to say
// leaves the topology as it is, with the reason in the host's fact "source.NAME"; it throws Error
// only when the host cannot be described at all. Tests put captured trees and libraries in place of
// the defaults.
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

extern const LiveSource hwloc_live;   // hosts, packages, NUMA nodes, GPUs, NICs, NVLink matrix
extern const LiveSource nvml;         // GPUs, their links, fabric and health, by dlopen
extern const LiveSource sysfs_ports;  // state, layer, rate, counters of the NICs' ports
extern const LiveSource sysfs_pci;    // PCIe links, ACS, read requests of GPUs and NICs
extern const LiveSource environment;  // NCCL settings, limits, container, modules

}  // namespace atoll_v1::atoll::topology_sources
