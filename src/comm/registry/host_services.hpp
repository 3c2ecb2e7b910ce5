// The services that core offers to plugins: log, store and reduction kernels (atoll_host in
// plugin.h).
#pragma once

#include "atoll/plugin.h"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// The table refers to `world` and must not outlive it.
atoll_host host_services(World& world);

}  // namespace atoll_v1::atoll
