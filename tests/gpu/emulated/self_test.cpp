// Checks that the emulated GPU finds the errors that tests/gpu/emulated/README.md lists.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "atoll/cuda.hpp"
#include "atoll/cuda/launch.cuh"
#include "device/backend.hpp"

namespace {

using atoll::cuda::native;
using atoll::cuda::start;

// Runs `body` in a child process. Returns the number of the signal that ended the process, or 0 if
// no signal did.
int signal_of(const std::function<void()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // doctest handles these signals. Without its handlers, the signal ends the process.
    for (const int sign : {SIGABRT, SIGSEGV}) ::signal(sign, SIG_DFL);
    static_cast<void>(std::freopen("/dev/null", "w", stderr));
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void run_kernel(void (*kernel)(float*), unsigned blocks = 1) {
  const auto device = atoll::Device::cuda();
  auto stream = device.stream();
  const auto memory = device.allocate(1024 * sizeof(float));
  start("kernel", kernel, {dim3(blocks), native(stream)}, static_cast<float*>(memory.data()));
  stream.synchronize();
}

__global__ void waits_apart(float*) {
  if (threadIdx.x < 32) return __syncwarp();
  // Threads 40 to 63, the rest of the second warp, do not reach this barrier.
  if (threadIdx.x < 40) __syncwarp();
  __syncthreads();
}

__global__ void shuffles_without_some(float* data) {
  if (threadIdx.x % 32 == 5) return;
  data[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

__global__ void writes_behind(float* data) { data[1024 + threadIdx.x] = 1; }

__global__ void reverses(float* data) {
  __shared__ float tile[atoll::cuda::threads];
  tile[threadIdx.x] = static_cast<float>(blockIdx.x * blockDim.x + threadIdx.x);
  __syncthreads();
  data[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

__global__ void adds_up_warps(float* data) {
  float value = static_cast<float>(threadIdx.x % 32);
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  const float of_lane_3 = __shfl_sync(0xffffffffu, static_cast<float>(threadIdx.x), 3, 8);
  if (threadIdx.x % 32 == 0) data[threadIdx.x / 32] = value;
  data[threadIdx.x + 32] = of_lane_3;
}

std::vector<float> result_of(void (*kernel)(float*), unsigned blocks) {
  const auto device = atoll::Device::cuda();
  auto stream = device.stream();
  const auto memory = device.allocate(1024 * sizeof(float));
  start("kernel", kernel, {dim3(blocks), native(stream)}, static_cast<float*>(memory.data()));
  std::vector<float> values(1024);
  stream.copy(values.data(), memory.data(), memory.bytes());
  stream.synchronize();
  return values;
}

}  // namespace

TEST_CASE("threads of a block meet at barriers, block after block") {
  const auto values = result_of(reverses, 2);
  for (int i = 0; i < 256; ++i) {
    CHECK(values[static_cast<std::size_t>(i)] == static_cast<float>(255 - i));
    CHECK(values[static_cast<std::size_t>(256 + i)] == static_cast<float>(511 - i));
  }
  // The kernel did not write this element, so it is still the NaN that filled the memory when it
  // was allocated.
  CHECK(std::isnan(values[512]));
}

TEST_CASE("shuffles work within a warp and within parts of it") {
  const auto values = result_of(adds_up_warps, 1);
  for (std::size_t warp = 0; warp < 8; ++warp) CHECK(values[warp] == 496);
  for (std::size_t i = 0; i < 256; ++i) {
    CHECK(values[32 + i] == static_cast<float>(i / 8 * 8 + 3));
  }
}

TEST_CASE("a deadlock of threads ends the process") {
  CHECK(signal_of([] { run_kernel(waits_apart); }) == SIGABRT);
  CHECK(signal_of([] { run_kernel(shuffles_without_some); }) == SIGABRT);
}

TEST_CASE("an access past the end of an allocation faults") {
  CHECK(signal_of([] { run_kernel(writes_behind); }) == SIGSEGV);
}

TEST_CASE("a kernel has 48 KiB of dynamic shared memory unless it asked for more") {
  const auto device = atoll::Device::cuda();
  auto stream = device.stream();
  const auto memory = device.allocate(1024 * sizeof(float));
  const auto start_with = [&](std::size_t bytes) {
    start("kernel", reverses, {dim3(1), native(stream), bytes}, static_cast<float*>(memory.data()));
  };
  constexpr std::size_t large = 100 << 10;
  CHECK_NOTHROW(start_with(48 << 10));
  CHECK_THROWS(start_with(large));
  CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(reverses),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, large) == cudaSuccess);
  CHECK_NOTHROW(start_with(large));
  stream.synchronize();
}

TEST_CASE("using one GPU creates no context on another, on any thread") {
  CHECK(signal_of([] {
          emulated::forget_contexts();
          const auto device = atoll::Device::cuda(2);
          auto stream = device.stream();
          auto memory = device.allocate(1024 * sizeof(float));
          auto staging = device.allocate_staging(64);
          const auto event = stream.record();
          std::thread([&] { event.backend()->peek(); }).join();
          std::thread([&] { event.synchronize(); }).join();
          std::thread([&] {
            stream.zero(memory.data(), 64);
            const auto stamp = stream.stamp();
            stream.wait(stream.record(), atoll::WaitReason::communication);
            stream.synchronize();
            static_cast<void>(stamp.ns());
            static_cast<void>(stream.exposed_communication());
          }).join();
          std::thread([mine = std::move(memory), other = std::move(staging)] {}).join();
          for (int ordinal = 0; ordinal < 8; ++ordinal) {
            if (emulated::has_context(ordinal) != (ordinal == 2)) std::abort();
          }
        }) == 0);
  // The library must restore the current device that the thread has set.
  CHECK(signal_of([] {
          cudaSetDevice(1);
          const auto device = atoll::Device::cuda(2);
          device.stream().synchronize();
          int now = -1;
          cudaGetDevice(&now);
          if (now != 1) std::abort();
        }) == 0);
}

TEST_CASE("an access to device memory from the host or a host function faults") {
  CHECK(signal_of([] {
          const auto device = atoll::Device::cuda();
          const auto memory = device.allocate(64);
          device.stream().synchronize();
          *static_cast<volatile float*>(memory.data()) = 1;
        }) == SIGSEGV);
  CHECK(signal_of([] {
          const auto device = atoll::Device::cuda();
          auto stream = device.stream();
          stream.synchronize();
          const auto memory = device.allocate(64);
          stream.enqueue([&] { *static_cast<volatile float*>(memory.data()) = 1; });
          stream.synchronize();
        }) == SIGSEGV);
}
