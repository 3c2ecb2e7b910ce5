// Machines by name: what people write about a cluster ("H100", "NVSwitch", "8x400G") as figures.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/job.hpp"

namespace plan {

struct ClusterText {
  std::string gpu{};  // name of the GPU: "H100", "NVIDIA A100-SXM4-80GB"
  // Published figures of a GPU that the table lacks, or that replace figures of the table; 0: the
  // figure of the table.
  double peak_tflops = 0;     // dense products in the type of the job
  double memory_gib = 0;      // what programs get
  double memory_gbyte_s = 0;  // bandwidth of the memory
  int hosts = 1;
  int ranks_per_host = 8;
  // Links inside a host: "NVSwitch", "PCIe", or "361 GB/s" of a ring; "": as on the GPU's usual
  // board.
  std::string intra{};
  // GB/s of a ring over the links that a topology has inside a host, before losses; 0: the rate on
  // the GPU's usual board.
  double links_gbyte_s = 0;
  std::string inter{};  // NICs of a host: "8x400G", "8xNDR", "TCP 100G"; "": 8x400G
  std::string inter_source = "--inter";  // the flag that `inter` came from
  double busbw = 0;  // GB/s that a host really reaches at most; 0: no limit beside the model
};

struct KnownCluster {
  Cluster cluster{};
  std::vector<std::string> unknown{};  // texts that were not understood; defaults replace them
};

// Whether the table of GPUs has this GPU.
bool has_model(const std::string& gpu);

// Throws Error(not_found) for an unknown GPU without all three published figures. The GPU "CPU"
// gives each rank its share of the memory of a host.
KnownCluster cluster_of(const ClusterText& text);

// Sets estimates for the links of CPUs. --curve gives measured rates instead.
void assume_links_of_cpus(Cluster& cluster);

// Returns the texts of a machine: a file in any form that atoll-topo reads, a name of its catalog
// ("hgx-h100", "hgx-h100x16"), or "here" for this machine. All hosts must be alike. Throws
// Error(not_found), Error(io), Error(bad_data), and Error(invalid_argument) for a machine without
// GPUs.
ClusterText read_topology(const std::string& what);

}  // namespace plan
