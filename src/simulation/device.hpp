// A device whose streams are clocks and whose memory is an accounting entry (atoll/simulated.hpp).
#pragma once

#include <string>

#include "atoll/device.hpp"

namespace atoll_v1::atoll::simulated {

// Returns DeviceOptions::links. Throws Error(invalid_argument) for a device that is not simulated.
const std::string& links_of(const Device& device);

}  // namespace atoll_v1::atoll::simulated
