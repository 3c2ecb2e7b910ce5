// Where the ranks of a job run.
#include <fmt/format.h>

#include <map>

#include "atoll/topology.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

std::map<std::string, std::vector<std::string>> gpus_by_host(const Topology& topology) {
  std::map<std::string, std::vector<std::string>> gpus;
  for (const TopologyGpu& gpu : topology.gpus) gpus[gpu.host].push_back(gpu.id);
  return gpus;
}

}  // namespace

std::vector<RankSite> assign_gpus(const Topology& topology, const std::vector<std::string>& hosts) {
  const auto gpus = gpus_by_host(topology);
  std::map<std::string, std::size_t> ranks_so_far;
  std::vector<RankSite> sites;
  for (const std::string& host : hosts) {
    RankSite site{.host = host, .gpu = ""};
    const std::size_t local = ranks_so_far[host]++;
    if (const auto found = gpus.find(host); found != gpus.end() && local < found->second.size())
      site.gpu = found->second[local];
    sites.push_back(std::move(site));
  }
  return sites;
}

std::vector<RankSite> fill_hosts(const Topology& topology, int count) {
  constexpr int most_ranks = 1'000'000;
  if (count < 0 || count > most_ranks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the number of ranks, {}, is not between 0 and {}", count, most_ranks));
  if (topology.hosts.empty()) throw Error(ErrorCode::invalid_argument, "there is no host");
  std::vector<std::string> hosts;
  if (topology.gpus.empty()) {
    if (count == 0)
      throw Error(ErrorCode::invalid_argument,
                  "there are no GPUs to count: say how many ranks there are");
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
  for (const TopologyHost& host : topology.hosts)
    if (const auto found = gpus.find(host.id); found != gpus.end())
      hosts.insert(hosts.end(), found->second.size(), host.id);
  hosts.resize(ranks);
  return assign_gpus(topology, hosts);
}

}  // namespace atoll_v1::atoll
