// Emulates a GPU with memory and threads of the host, to test kernels and the code that launches
// them on machines without a GPU.
//
// A stream is a host thread, which runs kernels block by block. The threads of a block are fibers
// that switch at barriers and shuffles. Barriers and shuffles check that every thread of the warp
// takes part, and a deadlock in a kernel ends the process with a message. Device memory is filled
// with NaN when it is allocated, and a protected page follows each allocation. Once the host has
// waited for all work, device memory is protected, so that an access by the host or by a host
// function faults. The emulation finds no races between the threads of a block or between warps,
// and its speed says nothing about the speed of a GPU.
#pragma once

#include <math.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include <cuda_runtime.h>

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
// Dynamic shared memory. A kernel that uses it declares it under this name:
// extern __shared__ float4 dynamic_shared[];
extern constinit thread_local float4 dynamic_shared[];

namespace emulated {

constexpr unsigned warp_size = 32;

struct Kernel {
  const void* function;
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
cudaError_t launch(const Kernel& kernel, std::function<void()> thread);
// The numbers of kernels and of matrix products that this process has launched.
struct Launches {
  std::atomic<std::uint64_t> kernels{0};
  std::atomic<std::uint64_t> products{0};  // by calls of cuBLASLt
};
Launches& launches();
// Returns true if this process has a context on the device.
bool has_context(int device);
// Forgets all contexts of this process. For child processes that were forked.
void forget_contexts();
// Runs work in the order of the stream. Device memory is accessible while the work runs.
void enqueue(cudaStream_t stream, std::function<void()> work);

// Must be called by all threads of a warp together. Each thread passes a value and receives the
// value of lane `from_lane`.
std::uint64_t exchange(std::uint64_t mine, unsigned from_lane);
unsigned lane();

template <class T>
T from_lane(T value, unsigned from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = exchange(word, from);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace emulated

// Loads and stores with a hint for the cache.
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);

template <class T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  const auto w = static_cast<unsigned>(width), l = emulated::lane();
  return emulated::from_lane(value, l / w * w + static_cast<unsigned>(from) % w);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  const unsigned l = emulated::lane(), from = l ^ static_cast<unsigned>(mask);
  return emulated::from_lane(
      value, from / static_cast<unsigned>(width) == l / static_cast<unsigned>(width) ? from : l);
}

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
  const unsigned l = emulated::lane(), w = static_cast<unsigned>(width);
  return emulated::from_lane(value, l % w + delta < w ? l + delta : l);
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return [&](Parameters... values) {
    return emulated::launch({reinterpret_cast<const void*>(kernel), config->gridDim,
                             config->blockDim, config->dynamicSmemBytes, config->stream},
                            [=] { kernel(values...); });
  }(std::forward<Arguments>(arguments)...);
}

namespace emulated {

// The arguments of a launch between <<< and >>>.
struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Launches a kernel. emulate.cmake replaces <<<>>>, which only nvcc can compile, by calls of this
// function. As with <<<>>>, the next cudaGetLastError() returns the error of the launch.
template <class... Parameters, class... Arguments>
void start(void (*kernel)(Parameters...), const Configuration& with, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = with.grid;
  config.blockDim = with.block;
  config.dynamicSmemBytes = with.shared_bytes;
  config.stream = with.stream;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace emulated

// Not atomic: the threads of all blocks of a stream take turns, and streams share no addresses.
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = std::max(before, value);
  return before;
}
inline float __uint_as_float(unsigned bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// CUDA code can call these functions without a namespace.
using std::max;
using std::min;
inline double cospi(double x) { return ::cos(3.14159265358979323846 * x); }
