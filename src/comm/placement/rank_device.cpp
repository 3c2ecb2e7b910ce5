#include "atoll/rank_device.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "core/errors.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {
namespace {

// First character of the message of a rank that cannot use a GPU; the reason follows. A rank that
// can use a GPU sends the UUID of the GPU.
constexpr char lacking = '!';
constexpr std::string_view no_gpu =
    "sees no GPU: no driver, an empty CUDA_VISIBLE_DEVICES, or a build without CUDA";

Device open_gpu(const World& world) {
  return Device::cuda(world.local_rank() % std::max(1, Device::cuda_count()));
}

// Throws Error(unsupported) when no backend supports GPU memory. If `backend` is not empty, only
// this backend is considered.
void check_backend(World& world, const std::string& backend) {
  std::string reasons;
  for (const auto& info : available_backends(world, DeviceKind::cuda)) {
    if (!backend.empty() && info.name != backend) continue;
    if (info.unusable.empty()) return;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", info.name, info.unusable);
  }
  throw make_error(ErrorCode::unsupported, "no backend supports GPU memory ({})",
                   reasons.empty() ? "no backend was found" : reasons);
}

// Returns the UUID of the GPU that this rank would use, or why the rank cannot use a GPU.
std::string describe_gpu(World& world, const RankDeviceOptions& options) {
  if (Device::cuda_count() == 0) return lacking + std::string(no_gpu);
  try {
    const Device gpu = open_gpu(world);
    if (options.check) options.check(gpu);
    if (options.communicates) {
      check_backend(world, options.backend.empty() ? world.config().backend : options.backend);
    }
    return std::string(gpu.uuid());
  } catch (const std::exception& error) {  // sends the error, because the other ranks wait
    return lacking + fmt::format("cannot use its GPU: {}", error.what());
  }
}

// Returns, from the message of each rank, the UUID of its GPU or the reason why it has none. Throws
// Error(mismatch) when ranks want different devices.
std::vector<std::string> decode(std::vector<std::string> all) {
  const auto wanted = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  const std::string first = wanted(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (wanted(all[rank]) == first) continue;
    throw make_error(ErrorCode::mismatch,
                     "ranks must choose the same device: rank 0 chose {}, rank {} chose {}", first,
                     rank, wanted(all[rank]));
  }
  for (std::string& text : all) text.erase(0, first.size() + 1);
  return all;
}

// Returns why some rank cannot use a GPU; empty when all ranks can.
std::string objection(const std::vector<std::string>& gpus) {
  const auto without =
      std::ranges::find_if(gpus, [](const std::string& gpu) { return gpu.starts_with(lacking); });
  if (without == gpus.end()) return "";
  return fmt::format("rank {} {}", without - gpus.begin(), without->substr(1));
}

// Returns, for each rank, all ranks on the same GPU in ascending order.
std::vector<std::vector<int>> sharers(const std::vector<std::string>& gpus) {
  std::vector<std::vector<int>> ranks(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    for (std::size_t other = 0; other < gpus.size(); ++other) {
      if (gpus[other] == gpus[rank]) ranks[rank].push_back(static_cast<int>(other));
    }
  }
  return ranks;
}

RankDevice on_cpus(const World& world, std::string why) {
  return {Device::cpu(), std::move(why), world.local_size(), world.local_rank(), 1};
}

}  // namespace

std::uint64_t RankDevice::memory_bytes() const noexcept {
  if (device.kind() == DeviceKind::cpu) return 0;
  return device.memory_bytes() / static_cast<std::uint64_t>(sharing);
}

RankDevice choose_rank_device(World& world, const RankDeviceOptions& options) {
  const std::string wanted = options.wanted == "host" ? "cpu" : options.wanted;
  const bool automatic = wanted == "auto", uses_gpus = automatic || wanted == "cuda";
  if (uses_gpus && world.config().owns_process != 0) Device::request_gpu_queues();
  // The message of a rank: the wanted device, a newline, and the result of describe_gpu().
  const std::string mine = wanted + '\n' + (uses_gpus ? describe_gpu(world, options) : "");
  const auto gpus =
      decode(world.exchange(store::titled("the GPUs of the ranks", "rank_device"), mine));
  if (wanted == "cpu") return on_cpus(world, "");
  require(uses_gpus, "unknown device \"{}\": use auto, cpu or cuda", wanted);
  if (const std::string why = objection(gpus); !why.empty()) {
    if (!automatic) throw Error(ErrorCode::not_found, "device cuda: " + why);
    const bool any = std::ranges::any_of(
        gpus, [](const std::string& gpu) { return gpu != lacking + std::string(no_gpu); });
    return on_cpus(world, any ? "running on CPUs, because " + why : "");
  }
  const auto ranks = sharers(gpus);
  const auto& most = *std::ranges::max_element(ranks, {}, &std::vector<int>::size);
  if (automatic && most.size() > 1) {
    return on_cpus(
        world, fmt::format("running on CPUs, because ranks {} have only one GPU ({}): use "
                           "--device cuda to share it",
                           fmt::join(most, ", "), gpus[static_cast<std::size_t>(most.front())]));
  }
  const auto& here = ranks[static_cast<std::size_t>(world.rank())];
  return {open_gpu(world), "", static_cast<int>(here.size()),
          static_cast<int>(std::ranges::find(here, world.rank()) - here.begin()),
          static_cast<int>(most.size())};
}

}  // namespace atoll_v1::atoll
