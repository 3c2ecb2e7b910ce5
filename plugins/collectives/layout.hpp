// Layout records which ranks of a communicator share a host.
#pragma once

#include <vector>

#include "atoll/level_schedule.hpp"
#include "atoll/plugin.h"

namespace atoll_collectives {

using Layout = atoll_levels::HostLayout;

inline Layout layout_of(const atoll_group& group) {
  std::vector<int> hosts;
  for (int rank = 0; rank < group.nranks; ++rank) hosts.push_back(group.placements[rank]->host);
  return Layout(hosts);
}

}  // namespace atoll_collectives
