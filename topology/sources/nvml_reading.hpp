// What NVML says of this host's GPUs, as data.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

struct NvmlLink {
  enum class Peer {
    gpu,
    network_switch,
    processor,
    unknown
  };
  bool is_active = false;
  Peer peer = Peer::unknown;
  std::string busid = {};  // of the peer; "" when NVML does not say, or the peer is not visible
};

struct NvmlGpu {
  std::string busid, uuid, model;
  int index = -1;
  std::vector<std::string> partitions;
  Facts facts;
  std::vector<NvmlLink> links;  // those that the chip has, active or not
  // False when NVML did not answer what links there are; it may answer that there are none.
  bool links_were_read = false;
};

struct NvmlReading {
  std::string failure;  // why nothing was read: "libnvidia-ml.so.1 cannot be opened: ..."; else ""
  std::string remark;   // what is missing: "1 of 8 GPUs cannot be opened: GPU is lost (15)"
  std::string driver_version;
  std::vector<NvmlGpu> gpus;      // those that this process may use
  bool all_gpus_answered = true;  // GPUs that this process may not use apart
};

// Opens the library and asks it everything. The driver can hang when a GPU is broken, so the asking
// has a thread of its own, which is left behind when no answer came within `patience`.
NvmlReading read_nvml(const std::string& library, std::chrono::milliseconds patience);

}  // namespace atoll_v1::atoll::topology_sources
