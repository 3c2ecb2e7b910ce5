// What surrounds a process: kernel, container, limits, and NCCL's settings.
#pragma once

#include <span>
#include <string>

#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {

// Adds facts to the host `request.host_id`. `variables` are the environment, "NAME=value".
void read_environment(const LiveRequest& request, std::span<const std::string> variables,
                      Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources
