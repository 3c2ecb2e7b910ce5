// Joins topologies of different hosts into one.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "atoll/tooling/load.hpp"

namespace atoll_v1::atoll {
namespace {

// Calls visit(id) for each id of a host or device. Calls visit_end(id) for both ends of each link,
// because the end of a link may be a switch that belongs to no host. The subject of a conflict may
// hold two ids in one text: "A - B".
template <class Visit, class VisitEnd>
void each_id(Topology& topology, const Visit& visit, const VisitEnd& visit_end) {
  for (TopologyHost& host : topology.hosts) visit(host.id);
  for (TopologyGpu& gpu : topology.gpus) visit(gpu.id), visit(gpu.host);
  for (TopologyNic& nic : topology.nics) visit(nic.id), visit(nic.host);
  for (TopologyLink& link : topology.links) visit_end(link.a), visit_end(link.b);
  for (TopologyPath& path : topology.paths) visit(path.a), visit(path.b);
  for (TopologyConflict& conflict : topology.conflicts) visit(conflict.subject);
  for (TopologyDocument& document : topology.documents)
    for (std::string& host : document.hosts) visit(host);
}

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
