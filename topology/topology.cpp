// Discovery of this host from all live sources, and merging of topologies.
#include "atoll/topology.hpp"

#include <array>
#include <set>

#include "gpu_models.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"

namespace atoll_v1::atoll {
namespace {

topology_sources::LiveRequest request_for(std::string_view host_id) {
  topology_sources::LiveRequest request;
  request.host_name = topology_sources::first_line(request.procfs / "sys/kernel/hostname");
  if (request.host_name.empty()) request.host_name = "localhost";
  request.host_id = host_id.empty() ? request.host_name : std::string(host_id);
  return request;
}

// Appends the elements of `part` whose ids are not in `seen`, and adds their ids to it.
template <class T>
void append_new(std::vector<T>& all, const std::vector<T>& part, std::set<std::string>& seen) {
  for (const T& element : part)
    if (seen.insert(element.id).second) all.push_back(element);
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

}  // namespace

std::string_view name(IslandState state) noexcept {
  constexpr std::array<std::string_view, 3> names{"known", "none", "unknown"};
  return names[static_cast<std::size_t>(state)];
}

std::string_view name(PathLevel level) noexcept {
  constexpr std::array<std::string_view, 6> names{"PIX", "PXB", "PHB", "NODE", "PKG", "SYS"};
  return names[static_cast<std::size_t>(level)];
}

Topology Topology::discover_local(std::string_view host_id) {
  const auto request = request_for(host_id);
  Topology topology;
  for (const auto look :
       {topology_sources::hwloc_live, topology_sources::nvml, topology_sources::sysfs_ports,
        topology_sources::sysfs_pci, topology_sources::environment})
    look(request, topology);
  fill_link_rates(topology);
  return topology;
}

Topology Topology::discover_local_ports(std::string_view host_id) {
  const auto request = request_for(host_id);
  Topology topology;
  topology_sources::sysfs_ports(request, topology);
  // Added after the ports: for a known host, sysfs_ports() would read network interfaces too.
  topology.hosts.push_back({.id = request.host_id, .name = request.host_name});
  return topology;
}

Topology merge(const std::vector<Topology>& parts) {
  Topology all;
  std::set<std::string> hosts, gpus, nics;
  std::set<std::array<std::string, 3>> links;
  for (const Topology& part : parts) {
    append_new(all.hosts, part.hosts, hosts);
    append_new(all.gpus, part.gpus, gpus);
    append_new(all.nics, part.nics, nics);
    append(all.paths, part.paths);
    append(all.conflicts, part.conflicts);
    append(all.documents, part.documents);
    // One part may contain several links between the same two ends, so a link is a duplicate only
    // if an earlier part contains it.
    std::set<std::array<std::string, 3>> here;
    for (const TopologyLink& link : part.links) {
      std::array<std::string, 3> key{std::min(link.a, link.b), std::max(link.a, link.b), link.type};
      if (links.contains(key)) continue;
      here.insert(std::move(key));
      all.links.push_back(link);
    }
    links.merge(here);
  }
  return all;
}

}  // namespace atoll_v1::atoll
