#include "mesh/planning.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "affinity.hpp"
#include "facts.hpp"
#include "pcie_rate.hpp"

namespace atoll_v1::atoll {

LinkRates::LinkRates(const Topology& of, const std::vector<RankSite>& ranks,
                     const MeshPlanOptions& options)
    : topology(of), sites(locate(of, ranks, options)), groups(group_ranks(sites)) {}

void LinkRates::collect_hosts() {
  const std::size_t size = sites.hosts.size();
  hosts_.resize(size);
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < size; ++i) numbers.try_emplace(sites.hosts[i], i);
  for (const TopologyHost& host : topology.hosts)
    if (const auto found = numbers.find(host.id); found != numbers.end())
      hosts_[found->second].listed = &host;
  for (std::size_t i = 0; i < topology.nics.size(); ++i)
    if (const auto host = numbers.find(topology.nics[i].host); host != numbers.end())
      hosts_[host->second].nics.push_back(i);
  std::vector<bool> seen(topology.gpus.size(), false);
  for (const MeshSite& site : sites.ranks) {
    ++hosts_[at_index(site.host)].users;
    if (site.gpu < 0 || seen[at_index(site.gpu)]) continue;
    seen[at_index(site.gpu)] = true;
    hosts_[at_index(site.host)].gpus.push_back(at_index(site.gpu));
  }
  const std::vector<Affinity> affinity = find_affinity(topology);
  const std::vector<std::optional<double>> usable = usable_gbyte_s(topology);
  for (Host& host : hosts_) {
    host.pcie = measure_pcie(host);
    host.network = measure_network(host, affinity, usable);
  }
}

std::optional<double> LinkRates::intra(int near) {
  const RankGroup& group = groups.near[at_index(near)];
  if (group.where.kind == Neighbourhood::Kind::island)
    return sites.islands[at_index(group.where.number)].gpu_gbyte_s;
  const bool without_links =
      std::ranges::all_of(group.ranks, [&](int rank) { return sites.is_alone(rank); });
  return without_links ? pcie(sites.at(group.ranks.front()).host) : std::nullopt;
}

std::optional<double> LinkRates::pcie(int host) { return at(host).pcie; }

std::optional<double> LinkRates::network(int host) { return at(host).network; }

LinkRates::Host& LinkRates::at(int number) {
  if (hosts_.empty()) collect_hosts();
  return hosts_[at_index(number)];
}

std::optional<double> LinkRates::measure_pcie(const Host& host) const {
  if (host.listed != nullptr && get_fact(host.listed->facts, fact::virtual_machine) == "yes")
    return std::nullopt;
  std::optional<double> slowest;
  for (const std::size_t gpu : host.gpus) {
    const auto rate = full_pcie_gbyte_s(topology.gpus[gpu].facts);
    if (!rate) return std::nullopt;
    slowest = std::min(slowest.value_or(*rate), *rate);
  }
  return slowest;
}

// Uses the NICs that the GPUs in use should send through. If there are none, uses all NICs that are
// not known to be down.
std::optional<double> LinkRates::measure_network(
    const Host& host, const std::vector<Affinity>& affinity,
    const std::vector<std::optional<double>>& usable) const {
  std::unordered_set<std::string_view> in_use;
  for (const std::size_t gpu : host.gpus)
    for (const std::string& nic : affinity[gpu].use) in_use.insert(nic);
  double sum = 0;
  for (const std::size_t number : host.nics) {
    const TopologyNic& nic = topology.nics[number];
    if (in_use.empty() ? !may_be_active(nic) : !in_use.contains(nic.id)) continue;
    if (!usable[number]) return std::nullopt;
    sum += *usable[number];
  }
  const double ranks = host.gpus.empty() ? host.users : static_cast<double>(host.gpus.size());
  return sum > 0 ? std::optional(sum / ranks) : std::nullopt;
}

// Computes the bandwidth at the maximum link speed, because an idle GPU lowers the speed of its
// link. pcie_gbyte_s() documents the line coding.
std::optional<double> full_pcie_gbyte_s(const Facts& facts) {
  // Lowest credible bandwidth of a GPU slot: slightly less than eight lanes at 8 GT/s.
  constexpr double least = 7.5;
  auto gt_s = number_fact(facts, fact::pci_gt_s_max);
  if (!gt_s) gt_s = number_fact(facts, fact::pci_gt_s);
  const auto width = number_fact(facts, fact::pci_width);
  std::optional<double> rate = number_fact(facts, fact::pci_gbyte_s);
  if (gt_s && width) rate = pcie_gbyte_s(*gt_s, *width);
  return rate && *rate >= least ? rate : std::nullopt;
}

}  // namespace atoll_v1::atoll
