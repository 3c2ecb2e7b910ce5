#include "loop/machine.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "model/cpu/cpu_ops.hpp"
#include "model/cuda/cuda_ops.hpp"

namespace train {
namespace {

// In front of what a rank lacks; otherwise it tells which GPU it has.
constexpr char lacking = '!';
constexpr std::string_view no_gpu =
    "sees no GPU: no driver, an empty CUDA_VISIBLE_DEVICES, or a build without CUDA";

atoll::Device open_gpu(const atoll::World& world) {
  return atoll::Device::cuda(world.local_rank() % std::max(1, atoll::Device::cuda_count()));
}

// Throws Error(unsupported) where no backend, or not this one, moves memory of GPUs.
void check_backend(atoll::World& world, const std::string& backend) {
  std::string reasons;
  for (const auto& info : atoll::available_backends(world, atoll::DeviceKind::cuda)) {
    if (!backend.empty() && info.name != backend) continue;
    if (info.unusable.empty()) return;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", info.name, info.unusable);
  }
  throw atoll::Error(
      atoll::ErrorCode::unsupported,
      fmt::format("no backend for memory of GPUs ({})", reasons.empty() ? "none found" : reasons));
}

std::string tell_gpu(atoll::World& world, const std::string& backend) {
  if (atoll::Device::cuda_count() == 0) return lacking + std::string(no_gpu);
  try {
    const atoll::Device gpu = open_gpu(world);
    cuda::check_usable(gpu);
    if (world.size() > 1) check_backend(world, backend);
    return std::string(gpu.uuid());
  } catch (const atoll::Error& error) {
    return lacking + fmt::format("cannot use its GPU: {}", error.what());
  }
}

// What stands against GPUs for all, if anything does.
std::string objection(const std::vector<std::string>& gpus) {
  const auto without =
      std::ranges::find_if(gpus, [](const std::string& gpu) { return gpu.starts_with(lacking); });
  if (without == gpus.end()) return "";
  return fmt::format("rank {} {}", without - gpus.begin(), without->substr(1));
}

// The ranks on each GPU, in their order: one entry for each rank.
std::vector<std::vector<int>> sharers(const std::vector<std::string>& gpus) {
  std::vector<std::vector<int>> ranks(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    for (std::size_t other = 0; other < gpus.size(); ++other) {
      if (gpus[other] == gpus[rank]) ranks[rank].push_back(static_cast<int>(other));
    }
  }
  return ranks;
}

DeviceChoice choose_host(const atoll::World& world, std::string why) {
  return {atoll::DeviceKind::host, std::move(why), world.local_size(), world.local_rank(), 1};
}

}  // namespace

DeviceChoice choose_device(atoll::World& world, const std::string& wanted,
                           const std::string& backend) {
  if (wanted == "host") return choose_host(world, "");
  const auto gpus = world.exchange("train/setup/gpus", tell_gpu(world, backend));
  if (const std::string why = objection(gpus); !why.empty()) {
    if (wanted == "cuda") throw atoll::Error(atoll::ErrorCode::not_found, "--device cuda: " + why);
    const bool any = std::ranges::any_of(
        gpus, [](const std::string& gpu) { return gpu != lacking + std::string(no_gpu); });
    return choose_host(world, any ? "on the host, as " + why : "");
  }
  const auto ranks = sharers(gpus);
  const auto& most = *std::ranges::max_element(ranks, {}, &std::vector<int>::size);
  if (wanted == "auto" && most.size() > 1) {
    return choose_host(
        world, fmt::format("on the host, as ranks {} have one GPU between them ({}): "
                           "--device cuda uses it all the same",
                           fmt::join(most, ", "), gpus[static_cast<std::size_t>(most.front())]));
  }
  const auto& mine = ranks[static_cast<std::size_t>(world.rank())];
  return {atoll::DeviceKind::cuda, "", static_cast<int>(mine.size()),
          static_cast<int>(std::ranges::find(mine, world.rank()) - mine.begin()),
          static_cast<int>(most.size())};
}

std::uint64_t gpu_memory_of_rank(const atoll::World& world, const DeviceChoice& choice) {
  return open_gpu(world).memory_bytes() / 10 * 9 / static_cast<std::uint64_t>(choice.sharing);
}

double Machine::matrix_peak(atoll::World& world, atoll::DType dtype) const {
  if (device.kind() == atoll::DeviceKind::cuda) {
    double peak = 0;  // of the whole GPU: those that share it measure one after the other
    for (int turn = 0; turn < choice.most_turns; ++turn) {
      if (turn == choice.turn) peak = cuda::matrix_peak_flops(device, dtype);
      if (choice.most_turns > 1) world.barrier();
    }
    return peak / choice.sharing;
  }
  const auto cores = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const double share = std::min(1.0, cores / (static_cast<double>(threads) * choice.sharing));
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

Machine make_machine(const atoll::World& world, const DeviceChoice& choice, int threads) {
  if (choice.kind == atoll::DeviceKind::cuda) {
    atoll::Device device = open_gpu(world);
    auto ops = cuda::make_ops(device, {.deterministic = world.config().deterministic != 0});
    return {std::move(device), std::move(ops), threads, choice};
  }
  return {atoll::Device::host(),
          std::make_unique<cpu::CpuOps>(cpu::CpuOpsOptions{.threads = threads}), threads, choice};
}

}  // namespace train
