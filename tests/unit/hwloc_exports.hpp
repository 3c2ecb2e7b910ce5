// Compares exports to hwloc XML with the topologies from which the exports were made.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "atoll/inspect/inspection.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/hwloc_machines.hpp"
#include "unit/topology_machines.hpp"

namespace hwloc_machines {

// The parts of a topology that hwloc XML can hold. An export lists everything that it had to leave
// out, such as facts and rates.
struct Told {
  std::vector<std::string> gpus, nics, links, islands;
  atoll::IslandState state = atoll::IslandState::unknown;
  bool operator==(const Told&) const = default;
};

inline std::string number(const std::optional<double>& value) {
  return value ? fmt::format("{:.3f}", *value) : "?";
}

inline Told told(const atoll::Topology& topology) {
  Told told;
  for (const auto& gpu : topology.gpus)
    told.gpus.push_back(fmt::format("{} {} {} {} {} {} {} {} {}", gpu.id, gpu.busid, gpu.uuid,
                                    gpu.model, gpu.index, gpu.numa, gpu.package, gpu.pci_path,
                                    atoll::get_fact(gpu.facts, atoll::fact::pci_device)));
  for (const auto& nic : topology.nics)
    told.nics.push_back(fmt::format("{} {} {} {} {} {} {} {} {}", nic.id, nic.busid, nic.adapter,
                                    nic.layer, nic.state, nic.numa, nic.package, nic.pci_path,
                                    atoll::get_fact(nic.facts, atoll::fact::lid)));
  for (const auto& link : topology.links)
    told.links.push_back(fmt::format("{} {} {} {} {}", std::min(link.a, link.b),
                                     std::max(link.a, link.b), link.type, link.count,
                                     number(link.gbyte_s)));
  std::ranges::sort(told.links);
  for (const auto& island : find_islands(topology))
    told.islands.push_back(fmt::format("{} {} {} {} {}", fmt::join(island.gpus, ","), island.fabric,
                                       name(island.state), number(island.pair_gbyte_s),
                                       number(island.gpu_gbyte_s)));
  told.state = topology.hosts.at(0).gpu_links;
  return told;
}

inline bool says(const atoll::Export& written, const std::string& what) {
  return std::ranges::any_of(
      written.lost, [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

// Exports the topology and checks that both readers of hwloc XML find the topology's devices and
// links in the export.
inline atoll::Export check_export(const atoll::Topology& topology) {
  const atoll::Export written = to_hwloc_xml(topology);
  atoll::Topology again = atoll::importers::hwloc_xml.read(written.text, "h.xml");
  CHECK(again.to_json() == read_with_libhwloc(written.text, again.hosts.at(0).id).to_json());
  fill_link_rates(again);
  CHECK(told(again).gpus == told(topology).gpus);
  CHECK(told(again).nics == told(topology).nics);
  CHECK(told(again).links == told(topology).links);
  CHECK(told(again).islands == told(topology).islands);
  CHECK(again.hosts[0].packages == topology.hosts[0].packages);
  CHECK(again.hosts[0].numa_nodes == topology.hosts[0].numa_nodes);
  CHECK(again.hosts[0].host_cores == topology.hosts[0].host_cores);
  CHECK(again.hosts[0].host_threads == topology.hosts[0].host_threads);
  CHECK(again.hosts[0].memory_bytes == topology.hosts[0].memory_bytes);
  return written;
}

// Returns a host with 2 packages of 2 NUMA nodes, and with half of the GPUs on each package. Each
// GPU and a NIC share a PCIe switch.
inline atoll::Topology board(int gpus, const std::string& model, const std::string& device) {
  atoll::Topology topology;
  machines::add_host(topology, "h", gpus, atoll::IslandState::known);
  topology.hosts[0].numa_nodes = 4;
  topology.hosts[0].cores = topology.hosts[0].host_cores = 7;
  topology.hosts[0].threads = topology.hosts[0].host_threads = 17;
  for (int i = 0; i < gpus; ++i) {
    auto& one = topology.gpus[static_cast<std::size_t>(i)];
    const std::string bus = fmt::format("{:02x}", 0x10 * i + 2);
    one.model = model;
    one.busid = fmt::format("00000000:{}:00.0", bus);
    one.uuid = fmt::format("GPU-{}a", i);
    one.package = 2 * i / gpus;
    one.numa = 2 * one.package + i % 2;
    one.pci_path = fmt::format("pci0000:{:02x}/00000000:{:02x}:01.0/00000000:{:02x}:00.0", 0x10 * i,
                               0x10 * i, 0x10 * i + 1);
    one.facts = {{"pci.device", device}, {"pci.class", "0302"}, {"pci.gbyte_s", "63.0154"}};
    topology.nics.push_back({.id = fmt::format("h/mlx5_{}", i),
                             .host = "h",
                             .name = fmt::format("mlx5_{}", i),
                             .busid = fmt::format("00000000:{:02x}:00.0", 0x10 * i + 3),
                             .adapter = fmt::format("ab:{}", i + 1),
                             .layer = i == 0 ? "ethernet" : "infiniband",
                             .state = i == 1 ? "down" : "active",
                             .rate_gbit_s = 400,
                             .evidence = "test",
                             .numa = one.numa,
                             .package = one.package,
                             .pci_path = one.pci_path,
                             .facts = {{"lid", fmt::format("{}", i)}}});
  }
  return topology;
}

}  // namespace hwloc_machines
