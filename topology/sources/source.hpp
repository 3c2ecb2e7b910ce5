// Where a topology comes from. A source is one file in this folder that defines one descriptor,
// declared below and listed in topology.cpp; nothing else knows it.
#pragma once

#include <string>
#include <string_view>

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
  std::string_view name;
  void (*look)(const LiveRequest& request, Topology& topology);
};

// Reads a text. The first source that recognises its beginning reads it, and throws Error(bad_data)
// with `origin` (the file's name) and a byte offset when it does not like it. A host without a name
// in the text is called after the file: `host_of(origin)`.
struct TextSource {
  std::string_view name;
  bool (*recognises)(std::string_view text);
  Topology (*read)(std::string_view text, std::string_view origin);
};

extern const LiveSource hwloc_live;   // hosts, packages, NUMA nodes, GPUs, NICs, NVLink matrix
extern const LiveSource nvml;         // GPUs, their links, fabric and health, by dlopen
extern const LiveSource sysfs_ports;  // state, layer, rate, counters of the NICs' ports
extern const LiveSource sysfs_pci;    // PCIe links, ACS, read requests of GPUs and NICs
extern const LiveSource environment;  // NCCL settings, limits, container, modules

extern const TextSource json;             // atoll's own form
extern const TextSource hwloc_xml;        // hwloc 1 and 2
extern const TextSource nccl_xml;         // NCCL's and RCCL's topology files
extern const TextSource nvidia_smi_xml;   // nvidia-smi -q -x
extern const TextSource nvidia_smi_topo;  // nvidia-smi topo -m

// "node7" for "dumps/node7.xml".
std::string host_of(std::string_view origin);

}  // namespace atoll_v1::atoll::topology_sources
