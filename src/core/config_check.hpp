// Checks settings that a program has written directly to the members of Config.
#pragma once

#include "atoll/config.hpp"

namespace atoll_v1::atoll {

// Throws Error(invalid_argument), which names the member, if Config::set() refuses its value.
void require_valid(const Config& config);

}  // namespace atoll_v1::atoll
