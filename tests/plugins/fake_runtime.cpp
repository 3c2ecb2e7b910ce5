// The functions of the CUDA runtime that the nccl backend calls, for CPU memory. The functions are
// weak symbols: in a program with the emulated GPU, those of the emulated GPU replace them.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "fake_gpu.hpp"

namespace {

thread_local int device = 0;

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake_gpu::devices;
  return cudaSuccess;
}
// Fails, because there is no driver. The caller then cannot find out which devices have a context.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* current) {
  *current = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= fake_gpu::devices) return cudaErrorInvalidDevice;
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the GPU"; }

}  // end of extern "C"
