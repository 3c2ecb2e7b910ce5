// What core lends to plugins: log, store, reduction kernels (atoll_host of plugin.h).
#pragma once

#include "atoll/plugin.h"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// The table refers to `world`.
atoll_host host_services(World& world);

}  // namespace atoll_v1::atoll
