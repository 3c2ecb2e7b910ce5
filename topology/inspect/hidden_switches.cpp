#include "gpu_models.hpp"
#include "inspect/hidden_switches.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {
namespace {

using Neighbours = std::map<std::string, std::map<std::string, int>>;  // counts of links

Neighbours direct_links(const Topology& topology) {
  std::set<std::string_view> gpus;
  for (const TopologyGpu& gpu : topology.gpus) gpus.insert(gpu.id);
  Neighbours neighbours;
  for (const TopologyLink& link : topology.links) {
    if (link.type != "nvlink" || link.a == link.b || !gpus.contains(link.a) ||
        !gpus.contains(link.b))
      continue;
    neighbours[link.a][link.b] += link.count;
    neighbours[link.b][link.a] += link.count;
  }
  return neighbours;
}

// GPUs that hang together with `first`; they leave `rest`.
std::set<std::string> connected(const Neighbours& neighbours, const std::string& first,
                                std::set<std::string>& rest) {
  std::set<std::string> found{first};
  std::vector<std::string> open{first};
  rest.erase(first);
  while (!open.empty()) {
    const std::string gpu = open.back();
    open.pop_back();
    for (const auto& [peer, count] : neighbours.at(gpu))
      if (rest.erase(peer) > 0) found.insert(peer), open.push_back(peer);
  }
  return found;
}

}  // namespace

void show_hidden_switches(Topology& topology) {
  const Neighbours neighbours = direct_links(topology);
  if (neighbours.empty()) return;
  std::map<std::string, const TopologyGpu*> gpus;
  for (const TopologyGpu& gpu : topology.gpus) gpus[gpu.id] = &gpu;
  const auto has_too_many = [&](const std::string& gpu) {
    const GpuModel* model = find_gpu_model(*gpus.at(gpu));
    int sum = 0;
    for (const auto& [peer, count] : neighbours.at(gpu)) sum += count;
    return model != nullptr && model->links > 0 && sum > model->links;
  };
  std::set<std::string> rest;
  for (const auto& [gpu, peers] : neighbours) rest.insert(gpu);
  while (!rest.empty()) {
    const std::string first = *rest.begin();
    const std::set<std::string> members = connected(neighbours, first, rest);
    if (std::ranges::none_of(members, has_too_many)) continue;
    std::erase_if(topology.links, [&](const TopologyLink& link) {
      return link.type == "nvlink" && members.contains(link.a) && members.contains(link.b);
    });
    for (const std::string& gpu : members) {
      int most = 0;
      for (const auto& [peer, count] : neighbours.at(gpu)) most = std::max(most, count);
      topology.links.push_back({.a = gpu,
                                .b = gpus.at(gpu)->host + "/nvswitch0",
                                .type = "nvlink",
                                .count = most,
                                .gbyte_s = std::nullopt});
    }
  }
}

}  // namespace atoll_v1::atoll
