#include "atoll/tooling/inspection.hpp"

#include <set>
#include <string_view>
#include <unordered_map>

#include "affinity.hpp"
#include "inspect/derived.hpp"

namespace atoll_v1::atoll {

Inspection inspect(Topology topology, std::vector<RankSite> ranks, std::optional<MeshPlan> plan) {
  Inspection inspection;
  inspection.islands = find_islands(topology);
  inspection.affinity = find_affinity(topology);
  inspection.rails = find_rails(topology, inspection.affinity);
  inspection.diagnosis = diagnose(topology, ranks, plan ? &*plan : nullptr);
  inspection.topology = std::move(topology);
  inspection.ranks = std::move(ranks);
  inspection.plan = std::move(plan);
  return inspection;
}

std::vector<std::optional<double>> find_pcie_limits(const Topology& topology) {
  std::vector<std::optional<double>> limits = pcie_limits_gbyte_s(topology);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const std::optional<double>& rate = topology.nics[i].rate_gbit_s;
    if (limits[i]) *limits[i] *= 8;
    if (rate && limits[i] >= rate) limits[i].reset();
  }
  return limits;
}

std::vector<CoresAffinity> find_cores_affinity(const Topology& topology) {
  // The NICs of one host, because find_cpu_affinity() looks at all NICs that it is given.
  struct Host {
    Topology nics;
    std::set<int> nodes;
  };
  std::unordered_map<std::string_view, Host> hosts;
  for (const TopologyNic& nic : topology.nics) {
    if (nic.is_virtual) continue;
    hosts[nic.host].nics.nics.push_back(nic);
    hosts[nic.host].nodes.insert(nic.numa);
  }
  for (const TopologyGpu& gpu : topology.gpus)
    if (const auto host = hosts.find(gpu.host); host != hosts.end())
      host->second.nodes.insert(gpu.numa);

  std::vector<CoresAffinity> result;
  for (const TopologyHost& host : topology.hosts) {
    const auto found = hosts.find(host.id);
    if (found == hosts.end()) continue;
    auto& [nics, nodes] = found->second;
    Affinity unbound = find_cpu_affinity(nics, host.id, -1);
    const bool has_nic = !unbound.use.empty();
    nodes.erase(nodes.begin(), nodes.lower_bound(0));
    if (!has_nic) nodes.clear();
    if (nodes.empty() || host.numa_nodes != 1) result.push_back({host.id, -1, std::move(unbound)});
    for (const int numa : nodes)
      result.push_back({host.id, numa, find_cpu_affinity(nics, host.id, numa)});
  }
  return result;
}

}  // namespace atoll_v1::atoll
