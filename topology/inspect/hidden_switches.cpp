#include "inspect/derived.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "atoll/topology.hpp"
#include "gpu_models.hpp"

namespace atoll_v1::atoll {
namespace {

// For each GPU, the number of links to each of its peers.
using Neighbours = std::map<std::string, std::map<std::string, int>>;

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

}  // namespace

void show_hidden_switches(Topology& topology, int most_links_of_unknown) {
  const Neighbours neighbours = direct_links(topology);
  std::map<std::string_view, const TopologyGpu*> gpus;
  for (const TopologyGpu& gpu : topology.gpus) gpus[gpu.id] = &gpu;
  std::map<std::string_view, int> switches;      // for each host, the number of its switches
  std::map<std::string, std::string> switch_of;  // for each GPU, the id of its switch
  std::set<std::string_view> seen;
  for (const TopologyGpu& first : topology.gpus) {
    if (!neighbours.contains(first.id) || !seen.insert(first.id).second) continue;
    std::vector<std::string> members{first.id};  // all GPUs that `first` reaches over direct links
    for (std::size_t i = 0; i < members.size(); ++i)
      for (const auto& [peer, count] : neighbours.at(members[i]))
        if (seen.insert(peer).second) members.push_back(peer);
    const auto has_too_many = [&](const std::string& gpu) {
      const GpuModel* model = find_gpu_model(*gpus.at(gpu));
      const int most = model != nullptr ? model->links : most_links_of_unknown;
      int sum = 0;
      for (const auto& [peer, count] : neighbours.at(gpu)) sum += count;
      return most > 0 && (sum > most || (model == nullptr && members.size() == 2 && sum == most));
    };
    if (std::ranges::none_of(members, has_too_many)) continue;
    // All switches with ids of the form "HOST/..." are treated as one switch, so the switch of a
    // second set of GPUs gets an id of the form "HOST:...".
    const int number = switches[first.host]++;
    for (const std::string& gpu : members)
      switch_of[gpu] = number == 0 ? first.host + "/nvswitch0"
                                   : fmt::format("{}:nvswitch{}", first.host, number);
  }
  std::erase_if(topology.links, [&](const TopologyLink& link) {
    return link.type == "nvlink" && switch_of.contains(link.a) && switch_of.contains(link.b);
  });
  for (const TopologyGpu& gpu : topology.gpus) {
    const auto found = switch_of.find(gpu.id);
    if (found == switch_of.end()) continue;
    int most = 0;
    for (const auto& [peer, count] : neighbours.at(gpu.id)) most = std::max(most, count);
    topology.links.push_back({gpu.id, found->second, "nvlink", most, std::nullopt});
  }
}

}  // namespace atoll_v1::atoll
