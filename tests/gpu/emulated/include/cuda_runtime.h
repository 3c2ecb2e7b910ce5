// The compiler finds this header before that of the CUDA toolkit. It turns kernels into host
// functions.
#pragma once
#pragma GCC system_header  // allows #include_next

#define __DEVICE_LAUNCH_PARAMETERS_H__  // emulated.hpp declares threadIdx and similar variables
#define __shared__ thread_local         // a host thread runs one block at a time
#define __launch_bounds__(...)
// Hides the toolkit's function, which cannot launch a kernel that is a host function.
#define cudaLaunchKernelEx toolkit_launch_kernel_ex

#include_next <cuda_runtime.h>

#undef cudaLaunchKernelEx

#include "emulated.hpp"
