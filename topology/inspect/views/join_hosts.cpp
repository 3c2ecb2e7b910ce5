// Machines that were described apart, side by side.
#include <fmt/format.h>

#include <set>
#include <unordered_map>

#include "atoll/inspect/load.hpp"

namespace atoll_v1::atoll {
namespace {

// The hosts of one topology under other names. A switch that belongs to no host is renamed too, by
// the same number: racks that were described apart are two racks.
class Renamer {
 public:
  Renamer(Topology& topology, const std::set<std::string>& taken) : topology_(topology) {
    for (const TopologyHost& host : topology.hosts)
      if (taken.contains(host.id)) ++clashes_;
    if (clashes_ == 0) return;
    while (any_taken(taken)) ++number_;
    for (const TopologyHost& host : topology.hosts) hosts_[host.id] = numbered(host.id);
    rename_all();
  }

 private:
  std::string numbered(const std::string& id) const { return fmt::format("{}-{}", id, number_); }

  bool any_taken(const std::set<std::string>& taken) const {
    for (const TopologyHost& host : topology_.hosts)
      if (taken.contains(numbered(host.id))) return true;
    return false;
  }

  // "HOST", "HOST/gpu0", "HOST:nvswitch1"
  void rename(std::string& id) const {
    for (std::size_t end = id.size(); end != std::string::npos && end > 0;
         end = id.find_last_of("/:", end - 1))
      if (const auto host = hosts_.find(id.substr(0, end)); host != hosts_.end()) {
        id = host->second + id.substr(end);
        return;
      }
  }

  void rename_end(std::string& id) const {
    const std::string before = id;
    rename(id);
    if (id == before) id = numbered(id);
  }

  void rename_all() {
    for (TopologyHost& host : topology_.hosts) {
      rename(host.id);
      host.name = numbered(host.name);
    }
    for (TopologyGpu& gpu : topology_.gpus) rename(gpu.id), rename(gpu.host);
    for (TopologyNic& nic : topology_.nics) rename(nic.id), rename(nic.host);
    for (TopologyLink& link : topology_.links) rename_end(link.a), rename_end(link.b);
    for (TopologyPath& path : topology_.paths) rename(path.a), rename(path.b);
    for (TopologyConflict& conflict : topology_.conflicts) rename(conflict.subject);
    for (TopologyDocument& document : topology_.documents)
      for (std::string& host : document.hosts) rename(host);
  }

  Topology& topology_;
  std::size_t clashes_ = 0;
  int number_ = 2;
  std::unordered_map<std::string, std::string> hosts_;
};

}  // namespace

Topology join_hosts(std::vector<Topology> parts) {
  std::set<std::string> taken;
  for (Topology& part : parts) {
    const Renamer renamed(part, taken);
    for (const TopologyHost& host : part.hosts) taken.insert(host.id);
  }
  return merge(parts);
}

}  // namespace atoll_v1::atoll
