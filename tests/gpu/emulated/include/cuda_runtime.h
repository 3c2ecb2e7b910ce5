// Found before the toolkit's header of the same name; turns kernels into host functions.
#pragma once
#pragma GCC system_header  // for #include_next

#define __DEVICE_LAUNCH_PARAMETERS_H__  // emulated.hpp declares threadIdx and the like
#define __shared__ thread_local         // a host thread runs one block at a time
#define __launch_bounds__(...)
#define cudaLaunchKernelEx toolkit_launch_kernel_ex  // the toolkit's version cannot call a host function

#include_next <cuda_runtime.h>

#undef cudaLaunchKernelEx

#include "emulated.hpp"
