// Chooses the ports that serve a rank.
#pragma once

#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "verbs/settings.hpp"

namespace atoll_verbs_backend {

struct PortChoice {
  std::vector<PortName> ports;  // ports to use, one per rail
  std::string why;              // reason of the choice, for the log
};

// Returns the ports that `wanted` names, or else the active ports that the topology assigns to this
// rank, or else all active ports. `device` is the CUDA ordinal of the GPU whose memory moves; -1
// means CPU memory. The core is asked once per process and device.
PortChoice choose_ports(const atoll_core& core, std::vector<PortName> wanted,
                        const std::vector<PortName>& active, int device);

}  // namespace atoll_verbs_backend
