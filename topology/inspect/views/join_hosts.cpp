// Joins topologies of different hosts into one.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "atoll/inspect/load.hpp"
#include "inspect/each_id.hpp"

namespace atoll_v1::atoll {
namespace {

// If the id of any host is taken, a number is appended to the ids of all hosts in the topology:
// "node" becomes "node-2". Switches that belong to no host get the same number, because racks in
// different files are different racks.
void make_unique(Topology& topology, const std::set<std::string>& taken) {
  const auto any_taken = [&](const auto& new_id) {
    return std::ranges::any_of(
        topology.hosts, [&](const TopologyHost& host) { return taken.contains(new_id(host.id)); });
  };
  if (!any_taken([](const std::string& id) { return id; })) return;
  int number = 2;
  const auto numbered = [&](const std::string& id) { return fmt::format("{}-{}", id, number); };
  while (any_taken(numbered)) ++number;
  std::unordered_map<std::string, std::string> new_ids;
  for (const TopologyHost& host : topology.hosts) new_ids[host.id] = numbered(host.id);
  // Renames an id such as "HOST", "HOST/gpu0" or "HOST:nvswitch1". Returns false if the id belongs
  // to no host.
  const auto rename = [&](std::string& id) {
    for (std::size_t end = id.size(); end != std::string::npos && end > 0;
         end = id.find_last_of("/:", end - 1))
      if (const auto host = new_ids.find(id.substr(0, end)); host != new_ids.end()) {
        id = host->second + id.substr(end);
        return true;
      }
    return false;
  };
  each_id(topology, rename, [&](std::string& end) {
    if (!rename(end)) end = numbered(end);
  });
  for (TopologyHost& host : topology.hosts) host.name = numbered(host.name);
}

}  // namespace

Topology join_hosts(std::vector<Topology> parts) {
  std::set<std::string> taken;
  for (Topology& part : parts) {
    make_unique(part, taken);
    for (const TopologyHost& host : part.hosts) taken.insert(host.id);
  }
  return merge(parts);
}

}  // namespace atoll_v1::atoll
