// DeviceOps on the CPU: each operation is one task of the stream.
#pragma once

#include <memory>

#include "device/ops.hpp"

namespace atoll_v1::atoll::host {

std::unique_ptr<DeviceOps> make_ops();

}  // namespace atoll_v1::atoll::host
