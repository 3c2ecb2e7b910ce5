// In front of the toolkit's header of this name: kernels become functions of the host.
#pragma once
#pragma GCC system_header  // for #include_next

#define __DEVICE_LAUNCH_PARAMETERS_H__  // threadIdx and its like are emulated.hpp's
#define __shared__ thread_local         // one block at a time on a thread of the host
#define __launch_bounds__(...)
#define cudaLaunchKernelEx toolkit_launch_kernel_ex  // it could not call what it launches

#include_next <cuda_runtime.h>

#undef cudaLaunchKernelEx

#include "emulated.hpp"
