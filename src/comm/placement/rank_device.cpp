#include "atoll/rank_device.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"

namespace atoll_v1::atoll {
namespace {

// In front of what a rank lacks; otherwise it tells which GPU it has.
constexpr char lacking = '!';
constexpr std::string_view no_gpu =
    "sees no GPU: no driver, an empty CUDA_VISIBLE_DEVICES, or a build without CUDA";

Device open_gpu(const World& world) {
  return Device::cuda(world.local_rank() % std::max(1, Device::cuda_count()));
}

// Throws Error(unsupported) where no backend, or not this one, moves memory of GPUs.
void check_backend(World& world, const std::string& backend) {
  std::string reasons;
  for (const auto& info : available_backends(world, DeviceKind::cuda)) {
    if (!backend.empty() && info.name != backend) continue;
    if (info.unusable.empty()) return;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", info.name, info.unusable);
  }
  throw Error(ErrorCode::unsupported, fmt::format("no backend for memory of GPUs ({})",
                                                  reasons.empty() ? "none found" : reasons));
}

std::string tell_gpu(World& world, const RankDeviceOptions& options) {
  if (Device::cuda_count() == 0) return lacking + std::string(no_gpu);
  try {
    const Device gpu = open_gpu(world);
    if (options.check) options.check(gpu);
    if (options.communicates) {
      check_backend(world, options.backend.empty() ? world.config().backend : options.backend);
    }
    return std::string(gpu.uuid());
  } catch (const std::exception& error) {  // the other ranks wait for what this one says
    return lacking + fmt::format("cannot use its GPU: {}", error.what());
  }
}

// What a rank wishes, in a line, and which GPU it has.
std::string tell(World& world, const RankDeviceOptions& options, bool uses_gpus) {
  return options.wanted + '\n' + (uses_gpus ? tell_gpu(world, options) : "");
}

// Throws where the wishes are not all one.
std::vector<std::string> without_wishes(std::vector<std::string> all) {
  const auto wish = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  const std::string first = wish(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (wish(all[rank]) == first) continue;
    throw Error(ErrorCode::mismatch, fmt::format("rank 0 is to compute on device {}, rank {} on {}",
                                                 first, rank, wish(all[rank])));
  }
  for (std::string& text : all) text.erase(0, first.size() + 1);
  return all;
}

// What stands against GPUs for all, if anything does.
std::string objection(const std::vector<std::string>& gpus) {
  const auto without =
      std::ranges::find_if(gpus, [](const std::string& gpu) { return gpu.starts_with(lacking); });
  if (without == gpus.end()) return "";
  return fmt::format("rank {} {}", without - gpus.begin(), without->substr(1));
}

// By rank: the ranks on its GPU, in their order.
std::vector<std::vector<int>> sharers(const std::vector<std::string>& gpus) {
  std::vector<std::vector<int>> ranks(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    for (std::size_t other = 0; other < gpus.size(); ++other) {
      if (gpus[other] == gpus[rank]) ranks[rank].push_back(static_cast<int>(other));
    }
  }
  return ranks;
}

RankDevice on_host(const World& world, std::string why) {
  return {Device::host(), std::move(why), world.local_size(), world.local_rank(), 1};
}

}  // namespace

std::uint64_t RankDevice::memory_bytes() const noexcept {
  if (device.kind() == DeviceKind::host) return 0;
  return device.memory_bytes() / static_cast<std::uint64_t>(sharing);
}

RankDevice choose_rank_device(World& world, const RankDeviceOptions& options) {
  const std::string& wanted = options.wanted;
  const bool automatic = wanted == "auto", uses_gpus = automatic || wanted == "cuda";
  const auto gpus =
      without_wishes(world.exchange("atoll/rank_device", tell(world, options, uses_gpus)));
  if (wanted == "host") return on_host(world, "");
  if (!uses_gpus) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device \"{}\": there are auto, host and cuda", wanted));
  }
  if (const std::string why = objection(gpus); !why.empty()) {
    if (!automatic) throw Error(ErrorCode::not_found, "device cuda: " + why);
    const bool any = std::ranges::any_of(
        gpus, [](const std::string& gpu) { return gpu != lacking + std::string(no_gpu); });
    return on_host(world, any ? "on the host, as " + why : "");
  }
  const auto ranks = sharers(gpus);
  const auto& most = *std::ranges::max_element(ranks, {}, &std::vector<int>::size);
  if (automatic && most.size() > 1) {
    return on_host(
        world, fmt::format("on the host, as ranks {} have one GPU between them ({}): "
                           "--device cuda uses it all the same",
                           fmt::join(most, ", "), gpus[static_cast<std::size_t>(most.front())]));
  }
  const auto& mine = ranks[static_cast<std::size_t>(world.rank())];
  return {open_gpu(world), "", static_cast<int>(mine.size()),
          static_cast<int>(std::ranges::find(mine, world.rank()) - mine.begin()),
          static_cast<int>(most.size())};
}

}  // namespace atoll_v1::atoll
