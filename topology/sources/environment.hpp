// Describes the surroundings of a process: kernel, container, limits and NCCL settings.
#pragma once

#include <span>
#include <string>

#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {

// Adds facts to the host `request.host_id`. `variables` holds the environment as "NAME=value".
void read_environment(const LiveRequest& request, std::span<const std::string> variables,
                      Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources
