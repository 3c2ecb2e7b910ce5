// DeviceOps that report the memory of each kernel to the checker before they start it.
#pragma once

#include <memory>

#include "device/ops.hpp"

namespace atoll_v1::atoll::checked {

// Kernels run on `inner`, which must outlive the result.
std::unique_ptr<DeviceOps> checked_ops(DeviceOps& inner);

}  // namespace atoll_v1::atoll::checked
