// Launches of kernels, and their dynamic shared memory.
#pragma once

#include "atoll/cuda/launch.cuh"

// Dynamic shared memory of the block; Launch::shared_bytes is its size. The emulated GPU
// (tests/gpu/emulated) defines it under this name.
extern __shared__ float4 dynamic_shared[];

namespace train::cuda {

using atoll::cuda::blocks_for;
using atoll::cuda::check;
using atoll::cuda::convert;
using atoll::cuda::first_item;
using atoll::cuda::is_aligned;
using atoll::cuda::items_stride;
using atoll::cuda::Launch;
using atoll::cuda::Pack;
using atoll::cuda::start;
using atoll::cuda::threads;
using atoll::cuda::Type;

}  // namespace train::cuda
