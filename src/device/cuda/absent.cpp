// This file replaces the implementation of CUDA devices in builds without a CUDA toolkit.
#include "atoll/device.hpp"
#include "atoll/error.hpp"

namespace atoll_v1::atoll {

void Device::request_gpu_queues() noexcept {}

int Device::cuda_count() noexcept { return 0; }

Device Device::cuda(int) {
  throw Error(
      ErrorCode::unsupported,
      "this build of atoll does not support GPUs: configure it with a CUDA toolkit (nvcc) in "
      "PATH or in CUDAToolkit_ROOT");
}

}  // namespace atoll_v1::atoll
