// Finds rails: the NICs on one leaf switch, and the GPUs that use them.
//
// If a fabric file names the leaf switches, each leaf is a rail. Otherwise the rule of
// rail-optimised clusters is assumed: NICs in equal positions of all hosts share a leaf. The *home*
// of a GPU is the set of NICs that it would use if all ports were up. A *position* numbers the
// distinct homes of a host in the order of its GPUs; on hosts without GPUs it numbers the NICs. The
// host with the most positions provides the position of each NIC name, and hosts that share any of
// its names use them. So neither a port that is down nor a lost GPU moves another port to a
// different rail.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "affinity.hpp"
#include "atoll/topology.hpp"
#include "facts.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// The homes of one host (sets of NICs that a GPU would use), and the position of each of its NICs
// by NIC name ("/mlx5_0").
struct Names {
  std::map<std::vector<std::string>, std::size_t> homes;
  std::map<std::string, std::size_t, std::less<>> positions;

  void add(const std::vector<std::string>& home, std::string_view host) {
    const auto [at, is_new] = homes.try_emplace(home, homes.size());
    for (const std::string& nic : home)
      positions.try_emplace(nic.substr(std::min(nic.size(), host.size())), at->second);
  }
};

class RailFinder {
 public:
  explicit RailFinder(const Topology& topology) : topology_(topology) {
    for (const TopologyNic& nic : topology.nics) {
      const std::string_view leaf = get_fact(nic.facts, fact::leaf);
      if (!leaf.empty()) leaves_[nic.id] = leaf;
    }
  }

  void add_gpus(const std::vector<Affinity>& affinity) {
    place_homes(affinity);
    for (std::size_t i = 0; i < affinity.size(); ++i)
      for (const std::string& nic : affinity[i].use) {
        Rail& rail = rail_of(topology_.gpus[i].host, nic);
        if (placed_.insert(nic).second) rail.nics.push_back(nic);
        if (rail.gpus.empty() || rail.gpus.back() != affinity[i].gpu)
          rail.gpus.push_back(affinity[i].gpu);
      }
  }

  // Adds the NICs of hosts without GPUs.
  void add_nics() {
    std::map<std::string_view, std::vector<const TopologyNic*>> by_host;
    for (const TopologyNic& nic : topology_.nics) by_host[nic.host].push_back(&nic);
    for (auto& [host, all] : by_host) {
      std::vector<const TopologyNic*> nics = eligible_nics(all);
      std::ranges::sort(nics, natural_less, &TopologyNic::name);
      for (std::size_t i = 0; i < nics.size(); ++i) {
        positions_[nics[i]->id] = i;
        rail_of(nics[i]->host, nics[i]->id).nics.push_back(nics[i]->id);
      }
    }
  }

  std::vector<Rail> take() {
    for (std::size_t i = 0; i < rails_.size(); ++i) rails_[i].index = static_cast<int>(i);
    return std::move(rails_);
  }

 private:
  void place_homes(const std::vector<Affinity>& affinity) {
    const bool all_up = std::ranges::all_of(topology_.nics, [](const TopologyNic& nic) {
      return nic.is_virtual || may_be_active(nic);
    });
    std::vector<Affinity> homes;
    if (!all_up) {
      Topology repaired;
      repaired.gpus = topology_.gpus;
      repaired.nics = topology_.nics;
      repaired.paths = topology_.paths;
      for (TopologyNic& nic : repaired.nics) nic.state = "active";
      homes = find_affinity(repaired);
    }
    std::map<std::string_view, std::vector<std::size_t>> gpus;  // GPUs of each host, by number
    for (std::size_t i = 0; i < affinity.size(); ++i) gpus[topology_.gpus[i].host].push_back(i);
    std::map<std::string_view, Names> of_hosts;
    const Names* reference = nullptr;
    for (auto& [host, members] : gpus) {
      std::ranges::stable_sort(members, {}, [&](std::size_t i) { return topology_.gpus[i].index; });
      Names& names = of_hosts[host];
      for (const std::size_t i : members) names.add(all_up ? affinity[i].use : homes[i].use, host);
      if (reference == nullptr || names.homes.size() > reference->homes.size()) reference = &names;
    }
    for (const auto& [host, names] : of_hosts) {
      const bool shares = std::ranges::any_of(names.positions, [&](const auto& entry) {
        return reference->positions.contains(entry.first);
      });
      for (const auto& [nic, position] : names.positions) {
        const auto known = reference->positions.find(nic);
        if (!shares)
          positions_[fmt::format("{}{}", host, nic)] = position;
        else if (known != reference->positions.end())
          positions_[fmt::format("{}{}", host, nic)] = known->second;
      }
    }
  }

  // Returns the rail of a NIC: by leaf switch if that is known, otherwise by position. A NIC that
  // is in no home (the NICs that a GPU would use) gets its own rail.
  Rail& rail_of(const std::string& host, const std::string& nic) {
    const auto leaf = leaves_.find(nic);
    const auto position = positions_.find(nic);
    std::string key;
    if (leaf != leaves_.end())
      key = "leaf " + std::string(leaf->second);
    else if (position != positions_.end())
      key = "position " + std::to_string(position->second);
    else
      key = "name " + nic.substr(std::min(nic.size(), host.size()));
    const auto [at, is_new] = numbers_.try_emplace(key, rails_.size());
    if (is_new) rails_.emplace_back().evidence = leaf != leaves_.end() ? "fabric" : "assumed";
    return rails_[at->second];
  }

  const Topology& topology_;
  std::unordered_map<std::string_view, std::string_view> leaves_;
  std::unordered_map<std::string, std::size_t> positions_;  // position of each NIC, by NIC id
  std::map<std::string, std::size_t> numbers_;
  std::set<std::string> placed_;
  std::vector<Rail> rails_;
};

}  // namespace

std::vector<Rail> find_rails(const Topology& topology, const std::vector<Affinity>& affinity) {
  RailFinder finder(topology);
  finder.add_gpus(affinity);
  if (topology.gpus.empty()) finder.add_nics();
  return finder.take();
}

}  // namespace atoll_v1::atoll
