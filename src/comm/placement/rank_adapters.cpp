#include "comm/placement/rank_adapters.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace atoll_v1::atoll {
namespace {

// CUDA writes a PCI domain with four digits, the topology with eight, so the ends are compared.
bool is_same_device(std::string_view busid, std::string_view gpu) {
  return !gpu.empty() && busid.ends_with(gpu);
}

Affinity affinity_of(const Topology& host, const RankEnvironment& rank, std::string_view gpu) {
  const auto found = std::ranges::find_if(
      host.gpus, [&](const TopologyGpu& one) { return is_same_device(one.busid, gpu); });
  if (found != host.gpus.end()) {
    auto all = find_affinity(host);
    return std::move(all[static_cast<std::size_t>(found - host.gpus.begin())]);
  }
  const std::string_view id = host.hosts.empty() ? "" : std::string_view(host.hosts.front().id);
  Affinity affinity = find_cpu_affinity(host, id, rank.numa);
  if (!gpu.empty()) affinity.why += fmt::format(" (the topology has no GPU {})", gpu);
  return affinity;
}

}  // namespace

RankAdapters choose_adapters(const Topology& host, const RankEnvironment& rank,
                             std::string_view gpu) {
  const Affinity affinity = affinity_of(host, rank, gpu);
  RankAdapters result{{}, affinity.why};
  for (const std::string& id : affinity.use) {
    const auto nic = std::ranges::find(host.nics, id, &TopologyNic::id);
    if (nic != host.nics.end()) result.ports.push_back(nic->name);
  }
  return result;
}

}  // namespace atoll_v1::atoll
