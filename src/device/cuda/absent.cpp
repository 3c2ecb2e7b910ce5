// In place of the `cuda` device, where the library was built without a CUDA toolkit.
#include "atoll/device.hpp"
#include "atoll/error.hpp"

namespace atoll_v1::atoll {

int Device::cuda_count() noexcept { return 0; }

Device Device::cuda(int) {
  throw Error(ErrorCode::unsupported,
              "this build of atoll has no cuda device: configure with a CUDA toolkit (nvcc) in the "
              "path, or CUDAToolkit_ROOT");
}

}  // namespace atoll_v1::atoll
