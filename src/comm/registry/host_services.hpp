// The services that core offers to plugins: log, store and reduction kernels (atoll_host in
// plugin.h).
#pragma once

#include "atoll/plugin.h"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// Returns the table of services for `world`. The table must not outlive `world`.
atoll_host host_services(World& world);

}  // namespace atoll_v1::atoll
