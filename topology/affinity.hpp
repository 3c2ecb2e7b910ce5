// Rules that the code for affinity, rails and the mesh uses to select NICs.
#pragma once

#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// True if the NIC is hardware and is not known to be down.
bool may_be_active(const TopologyNic& nic);

// Returns the NICs of a host that may be up (none is known to be down) and that belong to the
// fabric that joins the hosts.
std::vector<const TopologyNic*> eligible_nics(const std::vector<const TopologyNic*>& nics);

}  // namespace atoll_v1::atoll
