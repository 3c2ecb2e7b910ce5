// Rails: the NICs that hang on one leaf switch, and the GPUs that use them.
//
// Where a fabric file names the leaves, a rail is a leaf. Elsewhere the rule of rail-optimised
// clusters is assumed: equal positions of all hosts share a leaf. A position is a distinct set of
// NICs that some GPU uses, counted in the order of the GPUs; on machines without GPUs, a NIC.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "atoll/topology.hpp"
#include "facts.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

class RailFinder {
 public:
  explicit RailFinder(const Topology& topology) : topology_(topology) {
    for (const TopologyNic& nic : topology.nics) {
      const std::string_view leaf = get_fact(nic.facts, fact::leaf);
      if (!leaf.empty()) leaves_[nic.id] = leaf;
    }
  }

  void add_gpus(const std::vector<Affinity>& affinity) {
    for (std::size_t i = 0; i < affinity.size(); ++i) {
      const Affinity& one = affinity[i];
      if (one.use.empty()) continue;
      add(topology_.gpus[i].host, one.use, &one.gpu);
    }
  }

  // The NICs of a machine of CPUs.
  void add_nics() {
    std::map<std::string_view, std::vector<const TopologyNic*>> by_host;
    for (const TopologyNic& nic : topology_.nics)
      if (!nic.is_virtual && (nic.state.empty() || nic.state == "active"))
        by_host[nic.host].push_back(&nic);
    for (auto& [host, nics] : by_host) {
      std::ranges::sort(nics, natural_less, &TopologyNic::name);
      for (const TopologyNic* nic : nics) add(nic->host, {nic->id}, nullptr);
    }
  }

  std::vector<Rail> take() {
    for (std::size_t i = 0; i < rails_.size(); ++i) rails_[i].index = static_cast<int>(i);
    return std::move(rails_);
  }

 private:
  void add(const std::string& host, const std::vector<std::string>& nics, const std::string* gpu) {
    std::set<std::size_t> joined;
    for (const std::string& nic : nics) joined.insert(rail_of(host, nics, nic));
    for (const std::size_t rail : joined) {
      for (const std::string& nic : nics)
        if (rail_of(host, nics, nic) == rail && placed_.insert(nic).second)
          rails_[rail].nics.push_back(nic);
      if (gpu != nullptr) rails_[rail].gpus.push_back(*gpu);
    }
  }

  // By leaf where it is known, else by the position of the set in the host.
  std::size_t rail_of(const std::string& host, const std::vector<std::string>& nics,
                      const std::string& nic) {
    const auto leaf = leaves_.find(nic);
    std::string key;
    if (leaf != leaves_.end()) {
      key = "leaf " + std::string(leaf->second);
    } else {
      auto& positions = positions_[host];
      const auto [at, is_new] = positions.try_emplace(nics, positions.size());
      key = "position " + std::to_string(at->second);
    }
    const auto [at, is_new] = numbers_.try_emplace(key, rails_.size());
    if (is_new)
      rails_.push_back({.index = 0,
                        .nics = {},
                        .gpus = {},
                        .evidence = leaf != leaves_.end() ? "fabric" : "assumed"});
    return at->second;
  }

  const Topology& topology_;
  std::unordered_map<std::string_view, std::string_view> leaves_;
  std::unordered_map<std::string_view, std::map<std::vector<std::string>, std::size_t>> positions_;
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
