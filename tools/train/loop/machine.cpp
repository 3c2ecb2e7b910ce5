#include "loop/machine.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "model/cpu/cpu_ops.hpp"
#include "model/cuda/cuda_ops.hpp"

namespace train {
namespace {

// Of the GPU that this rank is on.
int ranks_of_gpu(const atoll::World& world) {
  const int gpus = std::max(1, atoll::Device::cuda_count());
  return (world.local_size() - world.local_rank() % gpus + gpus - 1) / gpus;
}

}  // namespace

double Machine::matrix_peak(atoll::DType dtype) const {
  if (device.kind() == atoll::DeviceKind::cuda) {
    return cuda::matrix_peak_flops(device, dtype) / ranks;
  }
  const auto cores = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const double share = std::min(1.0, cores / (static_cast<double>(threads) * ranks));
  return share * cpu::matrix_peak_flops(dtype, threads);
}

std::string Machine::peak_source() const {
  if (device.kind() == atoll::DeviceKind::cuda) {
    return fmt::format("this rank's share of {}: cuBLASLt matrix products, measured at the start",
                       device.name());
  }
  return fmt::format(
      "this rank's share of the machine: oneDNN matrix products, {} threads, measured at the start",
      threads);
}

atoll::DeviceKind choose_device(atoll::World& world, const std::string& wanted) {
  if (wanted == "host") return atoll::DeviceKind::host;
  const auto counts =
      world.exchange("train/setup/gpus", std::to_string(atoll::Device::cuda_count()));
  const auto without = std::ranges::find(counts, "0");
  if (without == counts.end()) return atoll::DeviceKind::cuda;
  if (wanted == "auto") return atoll::DeviceKind::host;
  throw atoll::Error(
      atoll::ErrorCode::not_found,
      fmt::format(
          "--device cuda: rank {} sees no GPU: no driver, an empty CUDA_VISIBLE_DEVICES, or "
          "a build without CUDA",
          without - counts.begin()));
}

atoll::Device open_device(const atoll::World& world, atoll::DeviceKind kind) {
  if (kind == atoll::DeviceKind::host) return atoll::Device::host();
  return atoll::Device::cuda(world.local_rank() % std::max(1, atoll::Device::cuda_count()));
}

std::uint64_t gpu_memory_of_rank(const atoll::World& world) {
  const auto bytes = open_device(world, atoll::DeviceKind::cuda).memory_bytes();
  return bytes / 10 * 9 / static_cast<std::uint64_t>(ranks_of_gpu(world));
}

Machine make_machine(const atoll::World& world, atoll::DeviceKind kind, int threads) {
  atoll::Device device = open_device(world, kind);
  if (kind == atoll::DeviceKind::cuda) {
    auto ops = cuda::make_ops(device);
    return {std::move(device), std::move(ops), threads, ranks_of_gpu(world)};
  }
  return {std::move(device), std::make_unique<cpu::CpuOps>(cpu::CpuOpsOptions{.threads = threads}),
          threads, world.local_size()};
}

}  // namespace train
