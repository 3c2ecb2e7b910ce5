// Main function of the tests of the cuda device. Skips all tests if there is no GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "atoll/device.hpp"

int main(int argc, char** argv) {
  atoll::Device::request_gpu_queues();
  if (atoll::Device::cuda_count() == 0) {
    std::puts("skipped: no GPU, or no driver for it");
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
