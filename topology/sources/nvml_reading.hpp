// The data that NVML reports about this host's GPUs.
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
  std::string busid = {};  // bus id of the peer; "" if NVML does not show it
};

struct NvmlGpu {
  std::string busid, uuid, model;
  int index = -1;
  std::vector<std::string> partitions;
  Facts facts;
  std::vector<NvmlLink> links;  // all links of the chip, active or not
  // False when NVML failed to report the links. When true, an empty `links` means that the GPU has
  // no links.
  bool links_were_read = false;
};

struct NvmlReading {
  std::string failure = {};  // why nothing was read, "NVML: driver not loaded (9)"; "" on success
  std::string remark = {};   // what is missing: "1 of 8 GPUs cannot be opened: GPU is lost (15)"
  std::string driver_version = {};
  std::vector<NvmlGpu> gpus = {};  // GPUs that this process may use
  bool all_gpus_answered = true;   // true if all GPUs that this process may use answered
};

// Loads the library and reads all GPUs. The driver may hang when a GPU is broken, so a separate
// thread does the reading. After `patience` without an answer that thread is abandoned and
// `failure` is set.
NvmlReading read_nvml(const std::string& library, std::chrono::milliseconds patience);

}  // namespace atoll_v1::atoll::topology_sources
