// The machine as a tree, for people.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "atoll/topology.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : "  ") + part;
  return text;
}

std::string count(int number, std::string_view noun) {
  return plural(static_cast<std::size_t>(std::max(0, number)), noun);
}

// "2 packages, 2 NUMA nodes, 64 cores (128 threads), 503 GiB"
std::string host_line(const TopologyHost& host) {
  std::string text = fmt::format(
      "{}, {}, {} ({})", count(host.packages, "package"), count(host.numa_nodes, "NUMA node"),
      count(host.host_cores, "core"), count(host.host_threads, "thread"));
  if (host.threads != host.host_threads)
    text += fmt::format(", of which {} ({}) may be used", count(host.cores, "core"),
                        count(host.threads, "thread"));
  if (host.memory_bytes > 0)
    text += fmt::format(", {:.1f} GiB", static_cast<double>(host.memory_bytes) / (1 << 30));
  return text;
}

std::string last_part(const std::string& id) { return id.substr(id.rfind('/') + 1); }

std::string gpu_line(const TopologyGpu& gpu) {
  return joined({last_part(gpu.id), gpu.model.empty() ? "GPU" : gpu.model, gpu.busid});
}

std::string nic_line(const TopologyNic& nic) {
  std::string rate;
  if (nic.rate_gbit_s) rate = fmt::format("{:g} Gbit/s ({})", *nic.rate_gbit_s, nic.evidence);
  return joined(
      {nic.name, nic.layer, nic.state.empty() ? "state unknown" : nic.state, rate, nic.busid});
}

void append_host(std::string& text, const Topology& topology, const TopologyHost& host,
                 const DisplayNames& names) {
  text += fmt::format("host {}\n  {}\n", names.host(host.id), host_line(host));
  std::map<int, std::vector<std::string>> by_numa;
  for (const TopologyGpu& gpu : topology.gpus)
    if (gpu.host == host.id) by_numa[gpu.numa].push_back(gpu_line(gpu));
  for (const TopologyNic& nic : topology.nics)
    if (nic.host == host.id) by_numa[nic.numa].push_back(nic_line(nic));
  for (const auto& [numa, lines] : by_numa) {
    text += numa < 0 ? "  NUMA node unknown\n" : fmt::format("  NUMA node {}\n", numa);
    for (const std::string& line : lines) text += fmt::format("    {}\n", line);
  }
}

std::string island_line(const Island& island, const DisplayNames& names) {
  if (island.gpus.empty()) return fmt::format("CPUs of {}", names.host(island.hosts.front()));
  std::string text =
      fmt::format("{}  {}", plural(island.gpus.size(), "GPU"), names.gpus(island.gpus));
  switch (island.state) {
    case IslandState::known:
      text += fmt::format("  {}", fabric_name(island.fabric));
      break;
    case IslandState::none:
      return text + "  no fast links";
    case IslandState::unknown:
      return text + "  links unknown: no source could see them";
  }
  if (island.gpu_gbyte_s) text += fmt::format("  {:.4g} GB/s a GPU", *island.gpu_gbyte_s);
  if (island.pair_gbyte_s) text += fmt::format("  {:.4g} GB/s a pair", *island.pair_gbyte_s);
  if (!island.uniform) text += "  not uniform";
  return text;
}

}  // namespace

std::string to_tree(const Topology& topology) {
  const DisplayNames names(topology);
  const std::vector<Island> islands = find_islands(topology);
  std::string text =
      fmt::format("{}, {}, {}, {}\n", plural(topology.hosts.size(), "host"),
                  plural(topology.gpus.size(), "GPU"), plural(topology.nics.size(), "NIC"),
                  plural(islands.size(), "island"));
  for (const TopologyHost& host : topology.hosts) append_host(text, topology, host, names);
  text += "islands\n";
  for (std::size_t i = 0; i < islands.size(); ++i)
    text += fmt::format("  {}: {}\n", i, island_line(islands[i], names));
  return text;
}

}  // namespace atoll_v1::atoll
