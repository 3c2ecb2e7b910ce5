// Live sources of a topology. A source is one file in this folder that defines one
// function, which is declared below and listed in topology.cpp. No other code knows the source.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

// Request to describe this host. The live sources run one after the other on one Topology: the
// first source adds the host, its GPUs and NICs; later sources add what earlier ones could not see.
// A source that finds nothing leaves the topology unchanged and sets the host's fact "source.NAME"
// to the reason. A source throws Error only when the host cannot be described at all. Tests set the
// paths to temporary folders, and `nvml` to another library.
struct LiveRequest {
  std::string host_id;
  std::string host_name;
  std::filesystem::path sysfs = "/sys";
  std::filesystem::path procfs = "/proc";
  std::filesystem::path dev = "/dev";
  std::filesystem::path etc = "/etc";
  std::string nvml = "libnvidia-ml.so.1";
};

// Adds the host, packages, NUMA nodes, GPUs, NICs and the NVLink matrix.
void hwloc_live(const LiveRequest& request, Topology& topology);
// Adds GPUs with their links, fabric and health. Loads NVML with dlopen().
void nvml(const LiveRequest& request, Topology& topology);
// Adds state, link layer, rate and counters of NIC ports.
void sysfs_ports(const LiveRequest& request, Topology& topology);
// Adds the PCIe links, ACS settings and read requests of GPUs and NICs.
void sysfs_pci(const LiveRequest& request, Topology& topology);
// Adds NCCL settings, limits, container and kernel modules.
void environment(const LiveRequest& request, Topology& topology);
// Does the same as environment(), but reads the environment from `variables` ("NAME=value").
void read_environment(const LiveRequest& request, std::span<const std::string> variables,
                      Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources
