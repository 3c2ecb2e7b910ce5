// The kind of device that a stream belongs to.
#pragma once

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

DeviceKind kind_of(const Stream& stream);  // defined in virtual/stream.cpp

}  // namespace atoll_v1::atoll
