// Assigns hosts and GPUs to ranks.
#include <fmt/format.h>

#include <string_view>
#include <unordered_map>

#include "atoll/mesh_plan.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

struct HostGpus {
  std::vector<const std::string*> gpus;
  std::size_t given = 0;  // number of GPUs already assigned to ranks
};

// The keys are views of strings in the topology.
std::unordered_map<std::string_view, HostGpus> gpus_by_host(const Topology& topology) {
  std::unordered_map<std::string_view, HostGpus> hosts;
  for (const TopologyGpu& gpu : topology.gpus) hosts[gpu.host].gpus.push_back(&gpu.id);
  return hosts;
}

}  // namespace

std::vector<RankSite> assign_gpus(const Topology& topology, const std::vector<std::string>& hosts) {
  auto by_host = gpus_by_host(topology);
  std::vector<RankSite> sites;
  sites.reserve(hosts.size());
  for (const std::string& host : hosts) {
    RankSite site{.host = host, .gpu = ""};
    if (const auto found = by_host.find(host); found != by_host.end()) {
      HostGpus& here = found->second;
      if (here.given < here.gpus.size()) site.gpu = *here.gpus[here.given++];
    }
    sites.push_back(std::move(site));
  }
  return sites;
}

std::vector<RankSite> fill_hosts(const Topology& topology, int count) {
  constexpr int most_ranks = 1'000'000;
  if (count < 0 || count > most_ranks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the number of ranks, {}, is not between 0 and {}", count, most_ranks));
  if (topology.hosts.empty()) throw Error(ErrorCode::invalid_argument, "the topology has no host");
  std::vector<std::string> hosts;
  if (topology.gpus.empty()) {
    if (count == 0)
      throw Error(ErrorCode::invalid_argument,
                  "the topology has no GPUs: give the number of ranks");
    const std::size_t ranks = static_cast<std::size_t>(count), size = topology.hosts.size();
    for (std::size_t host = 0; host < size; ++host)
      hosts.resize(ranks * (host + 1) / size, topology.hosts[host].id);
    return assign_gpus(topology, hosts);
  }
  const std::size_t ranks = count == 0 ? topology.gpus.size() : static_cast<std::size_t>(count);
  if (ranks > topology.gpus.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} do not fit on {}", plural(ranks, "rank"),
                            plural(topology.gpus.size(), "GPU")));
  const auto gpus = gpus_by_host(topology);
  hosts.reserve(topology.gpus.size());
  for (const TopologyHost& host : topology.hosts)
    if (const auto found = gpus.find(host.id); found != gpus.end())
      hosts.insert(hosts.end(), found->second.gpus.size(), host.id);
  hosts.resize(ranks);
  return assign_gpus(topology, hosts);
}

}  // namespace atoll_v1::atoll
