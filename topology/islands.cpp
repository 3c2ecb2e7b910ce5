// Finds islands: GPUs that the fast fabric joins.
//
// Idea: islands are the connected components of a graph. Its nodes are GPUs and switches; a switch
// is any end of an NVLink or xGMI link that is not a GPU. Edges:
//   1. the links;
//   2. all switches of one host are one node: the trunks between the two boards of a DGX-2 exist,
//      although no matrix shows them;
//   3. GPUs, on any hosts, whose NVLink fabric is completed under the same cluster UUID and clique,
//      and GPUs of the same xGMI hive. Drivers report these for fabrics that one host cannot see.
// A GPU without an edge is alone in its island when all links of its host are known or its model
// has no connector. Otherwise it shares one island of state "unknown" with all other such GPUs of
// its host.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "atoll/topology.hpp"
#include "disjoint_sets.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"

namespace atoll_v1::atoll {
namespace {

bool is_fast(std::string_view type) { return type == "nvlink" || type == "xgmi"; }

// Sum of the bandwidth of links; unknown when the rate of any link is unknown.
struct Sum {
  double gbyte_s = 0;
  bool known = true;
  void add(const TopologyLink& link) {
    known = known && link.gbyte_s.has_value();
    gbyte_s += link.gbyte_s.value_or(0);
  }
};

std::optional<double> slowest(const std::vector<Sum>& sums) {
  std::optional<double> least;
  for (const Sum& sum : sums) {
    if (!sum.known) return std::nullopt;
    least = std::min(least.value_or(sum.gbyte_s), sum.gbyte_s);
  }
  return least;
}

bool all_alike(const std::vector<Sum>& sums) {
  return std::ranges::all_of(sums, [&](const Sum& sum) {
    return sum.known == sums.front().known && sum.gbyte_s == sums.front().gbyte_s;
  });
}

// Name of the multi-host fabric that the GPU's driver reports; "" when it reports none.
std::string reported_fabric(const TopologyGpu& gpu) {
  const std::string_view hive = get_fact(gpu.facts, fact::xgmi_hive);
  // The id of an xGMI hive is unique only within its host, so the name includes the host.
  if (hive.find_first_not_of("0x") != std::string_view::npos)
    return "xgmi " + std::string(hive) + ' ' + gpu.host;
  const std::string_view cluster = get_fact(gpu.facts, fact::fabric_cluster);
  const std::string_view clique = get_fact(gpu.facts, fact::fabric_clique);
  const std::string_view status = get_fact(gpu.facts, fact::fabric_status);
  const bool completed = get_fact(gpu.facts, fact::fabric_state) == "completed" &&
                         (status.empty() || status == "success" || status == "Success");
  if (!completed || clique.empty() || cluster.find_first_not_of("0-") == std::string_view::npos)
    return "";
  return "nvlink " + std::string(cluster) + ' ' + std::string(clique);
}

bool cannot_have_links(const TopologyGpu& gpu) {
  return get_fact(gpu.facts, fact::xgmi_hive) == "0" || has_no_connector(gpu);
}

class IslandFinder {
 public:
  explicit IslandFinder(const Topology& topology)
      : topology_(topology), sets_(topology.gpus.size()) {
    for (std::size_t i = 0; i < topology.hosts.size(); ++i)
      host_numbers_.try_emplace(topology.hosts[i].id, i);
    for (std::size_t i = 0; i < topology.gpus.size(); ++i)
      gpu_numbers_.try_emplace(topology.gpus[i].id, i);
  }

  std::vector<Island> find() {
    has_link_.resize(topology_.gpus.size());
    has_unseen_.resize(topology_.gpus.size());
    join_links();
    for (const TopologyGpu& gpu : topology_.gpus) reported_.push_back(reported_fabric(gpu));
    join_by([&](std::size_t gpu) { return reported_[gpu]; });
    // The slash keeps the key of a host with an empty id from being empty, which means no key.
    join_by([&](std::size_t gpu) {
      return is_unknown(gpu) ? topology_.gpus[gpu].host + '/' : std::string();
    });
    // The GPUs of each connected set, by the root of the set, in ascending order.
    std::unordered_map<std::size_t, std::vector<std::size_t>> members;
    for (std::size_t gpu = 0; gpu < topology_.gpus.size(); ++gpu)
      members[sets_.root(gpu)].push_back(gpu);
    sort_links();
    for (const auto& [set, gpus] : members)
      found_.push_back(
          {{host_number(topology_.gpus[gpus.front()].host), gpus.front()}, make_island(set, gpus)});
    add_cpu_islands();
    std::ranges::sort(found_, {}, &Found::key);
    std::vector<Island> islands;
    for (Found& one : found_) islands.push_back(std::move(one.island));
    return islands;
  }

 private:
  struct Found {
    // Sort key: positions of the island's first host and first GPU.
    std::pair<std::size_t, std::size_t> key;
    Island island;
  };

  static constexpr int no_gpu = -1;

  int gpu_number(std::string_view id) const {
    const auto found = gpu_numbers_.find(id);
    return found == gpu_numbers_.end() ? no_gpu : static_cast<int>(found->second);
  }

  std::size_t host_number(std::string_view id) const {
    const auto found = host_numbers_.find(id);
    return found == host_numbers_.end() ? host_numbers_.size() : found->second;
  }

  // Returns the node of a GPU or switch. All switches of one host ("HOST/...") share a node; a
  // switch without a host has a node of its own.
  std::size_t node(const std::string& id) {
    if (const auto gpu = gpu_numbers_.find(id); gpu != gpu_numbers_.end()) return gpu->second;
    const std::string_view whole = id;
    const std::string_view host = whole.substr(0, std::min(whole.size(), whole.rfind('/')));
    const auto [at, is_new] = switches_.try_emplace(host_numbers_.contains(host) ? host : whole, 0);
    if (is_new) at->second = sets_.add();
    return at->second;
  }

  void join_links() {
    for (const TopologyLink& link : topology_.links) {
      if (link.type == "nvlink_unseen") mark_ends(link, has_unseen_);
      if (!is_fast(link.type) || link.a == link.b) continue;
      sets_.join(node(link.a), node(link.b));
      mark_ends(link, has_link_);
    }
  }

  void mark_ends(const TopologyLink& link, std::vector<bool>& marks) const {
    for (const std::string* end : {&link.a, &link.b})
      if (const int gpu = gpu_number(*end); gpu != no_gpu)
        marks[static_cast<std::size_t>(gpu)] = true;
  }

  // Joins the GPUs for which key(gpu) is equal and not empty.
  template <class Key>
  void join_by(const Key& key) {
    std::unordered_map<std::string, std::size_t> first;
    for (std::size_t gpu = 0; gpu < topology_.gpus.size(); ++gpu)
      if (const std::string text = key(gpu); !text.empty())
        sets_.join(first.try_emplace(text, gpu).first->second, gpu);
  }

  // True if nothing is known about the GPU's links: none is visible, and no source claims to show
  // all links of its host.
  bool is_unknown(std::size_t gpu) const {
    if (has_link_[gpu] || !reported_[gpu].empty() || cannot_have_links(topology_.gpus[gpu]))
      return false;
    const std::size_t number = host_number(topology_.gpus[gpu].host);
    return has_unseen_[gpu] || number >= topology_.hosts.size() ||
           topology_.hosts[number].gpu_links == IslandState::unknown;
  }

  void sort_links() {
    for (const TopologyLink& link : topology_.links)
      if (is_fast(link.type) && link.a != link.b)
        links_of_set_[sets_.root(node(link.a))].push_back(&link);
  }

  Island make_island(std::size_t set, const std::vector<std::size_t>& gpus) const {
    Island island;
    std::set<std::string_view> hosts;
    for (const std::size_t gpu : gpus) {
      island.gpus.push_back(topology_.gpus[gpu].id);
      if (hosts.insert(topology_.gpus[gpu].host).second)
        island.hosts.push_back(topology_.gpus[gpu].host);
    }
    const auto links = links_of_set_.find(set);
    const std::string& reported = reported_[gpus.front()];
    if (links != links_of_set_.end()) {
      island.state = IslandState::known;
      island.fabric = links->second.front()->type;
      measure(links->second, gpus, island);
    } else if (!reported.empty()) {
      island.state = IslandState::known;
      island.fabric = reported.substr(0, reported.find(' '));
    } else {
      island.state = is_unknown(gpus.front()) ? IslandState::unknown : IslandState::none;
    }
    return island;
  }

  // Computes bandwidths. A pair is joined either by direct links or through the switches that both
  // GPUs connect to. When an island mixes the two, or a pair has neither, no single rate holds for
  // all pairs.
  void measure(const std::vector<const TopologyLink*>& links, const std::vector<std::size_t>& gpus,
               Island& island) const {
    std::map<int, Sum> gpu_sums, switch_sums;
    std::map<std::pair<int, int>, Sum> pair_sums;
    for (const TopologyLink* link : links) {
      const int a = gpu_number(link->a), b = gpu_number(link->b);
      for (const int gpu : {a, b})
        if (gpu != no_gpu) gpu_sums[gpu].add(*link);
      if (a != no_gpu && b != no_gpu) pair_sums[std::minmax(a, b)].add(*link);
      if ((a == no_gpu) != (b == no_gpu)) switch_sums[std::max(a, b)].add(*link);
    }
    const auto values = [](const auto& map) {
      std::vector<Sum> sums;
      for (const auto& [unused, sum] : map) sums.push_back(sum);
      return sums;
    };
    const std::vector<Sum> totals = values(gpu_sums);
    const bool all_pairs = pair_sums.size() == gpus.size() * (gpus.size() - 1) / 2;
    const bool switched = switch_sums.size() == gpus.size();
    std::vector<Sum> pairs;
    if (switched && pair_sums.empty()) pairs = values(switch_sums);
    if (switch_sums.empty() && all_pairs) pairs = values(pair_sums);
    island.gpu_gbyte_s = slowest(totals);
    if (gpus.size() > 1) {
      island.pair_gbyte_s = slowest(pairs);
      island.uniform = !pairs.empty() && all_alike(pairs) && all_alike(totals);
    }
  }

  void add_cpu_islands() {
    std::unordered_set<std::string_view> with_gpus;
    for (const TopologyGpu& gpu : topology_.gpus) with_gpus.insert(gpu.host);
    for (const TopologyHost& host : topology_.hosts) {
      if (with_gpus.contains(host.id)) continue;
      Island island;
      island.hosts = {host.id};
      island.fabric = "cpu";
      island.state = IslandState::known;
      found_.push_back({{host_number(host.id), 0}, std::move(island)});
    }
  }

  const Topology& topology_;
  // The keys are views of ids that the topology owns.
  std::unordered_map<std::string_view, std::size_t> host_numbers_, gpu_numbers_, switches_;
  // For each GPU, whether it has links to devices in the topology, and whether it has links to GPUs
  // that are not in the topology.
  std::vector<bool> has_link_, has_unseen_;
  std::vector<std::string> reported_;  // fabric that each GPU's driver reports
  std::unordered_map<std::size_t, std::vector<const TopologyLink*>> links_of_set_;
  std::vector<Found> found_;
  DisjointSets sets_;
};

}  // namespace

std::vector<Island> find_islands(const Topology& topology) { return IslandFinder(topology).find(); }

}  // namespace atoll_v1::atoll
