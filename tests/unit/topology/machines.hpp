// Functions that build small topologies for tests.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/tooling/inspection.hpp"
#include "atoll/tooling/load.hpp"

namespace machines {

using atoll::IslandState;
using atoll::Topology;

inline std::string gpu(const std::string& host, int number) {
  return host + "/gpu" + std::to_string(number);
}

inline void add_host(Topology& topology, const std::string& host, int gpus = 0,
                     IslandState gpu_links = IslandState::unknown) {
  topology.hosts.push_back({.id = host,
                            .name = host,
                            .packages = 2,
                            .numa_nodes = 2,
                            .cores = 8,
                            .threads = 16,
                            .memory_bytes = 1ULL << 30,
                            .host_cores = 8,
                            .host_threads = 16,
                            .gpu_links = gpu_links});
  for (int i = 0; i < gpus; ++i)
    topology.gpus.push_back({.id = gpu(host, i),
                             .host = host,
                             .busid = "00000000:" + std::to_string(10 + i) + ":00.0",
                             .uuid = "",
                             .model = "test",
                             .index = i,
                             .numa = i * 2 / gpus});
}

inline void link(Topology& topology, const std::string& a, const std::string& b, int count = 1,
                 double gbyte_s = 25) {
  topology.links.push_back(
      {.a = a, .b = b, .type = "nvlink", .count = count, .gbyte_s = count * gbyte_s});
}

// Links every GPU in `gpus` with every other GPU in `gpus`.
inline void join_all(Topology& topology, const std::string& host, const std::vector<int>& gpus,
                     int count = 4) {
  for (std::size_t i = 0; i < gpus.size(); ++i)
    for (std::size_t j = i + 1; j < gpus.size(); ++j)
      link(topology, gpu(host, gpus[i]), gpu(host, gpus[j]), count);
}

// Adds an active InfiniBand port.
inline atoll::TopologyNic& add_nic(Topology& topology, const std::string& host, double gbit_s,
                                   const std::string& name = "mlx5_0") {
  topology.nics.push_back({.id = host + '/' + name,
                           .host = host,
                           .name = name,
                           .busid = "",
                           .adapter = "",
                           .layer = "infiniband",
                           .state = "active",
                           .rate_gbit_s = gbit_s,
                           .evidence = "test"});
  return topology.nics.back();
}

// Adds a host with GPUs that are all linked to one NVSwitch, as on an HGX board.
inline void add_switched(Topology& topology, const std::string& host, int gpus) {
  add_host(topology, host, gpus, IslandState::known);
  for (int i = 0; i < gpus; ++i) link(topology, gpu(host, i), host + "/nvswitch0", 18);
}

// Returns hosts named a, b, c, ... with 8 GPUs each. All GPUs of a host are linked to one NVSwitch.
inline Topology hgx(int hosts) {
  Topology topology;
  for (int i = 0; i < hosts; ++i)
    add_switched(topology, std::string(1, static_cast<char>('a' + i)), 8);
  return topology;
}

// Returns hosts named a, b, c, ... without GPUs.
inline Topology cpus(int hosts) {
  Topology topology;
  for (int i = 0; i < hosts; ++i) add_host(topology, std::string(1, static_cast<char>('a' + i)));
  return topology;
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }
inline std::string or_dash(const std::optional<double>& number) {
  return number ? fmt::format("{}", *number) : "-";
}

// Return the islands, GPUs, links or conflicts as text, with "-" for what is unknown.
// "8 known nvlink 450 450; ": GB/s of a GPU and of a pair, and "uneven" if pairs differ.
inline std::string islands_of(const Topology& topology) {
  std::string text;
  for (const atoll::Island& one : atoll::find_islands(topology))
    text += fmt::format("{} {} {} {} {}{}; ", one.gpus.size(), name(one.state), or_dash(one.fabric),
                        or_dash(one.gpu_gbyte_s), or_dash(one.pair_gbyte_s),
                        one.uniform ? "" : " uneven");
  return text;
}
// "a/gpu0 00000000:10:00.0 index 0 numa 1 test; "
inline std::string gpus_of(const Topology& topology) {
  std::string text;
  for (const atoll::TopologyGpu& one : topology.gpus)
    text += fmt::format("{} {} index {} numa {} {}; ", one.id, or_dash(one.busid), one.index,
                        one.numa, or_dash(one.model));
  return text;
}
// "a/gpu0 - a/gpu1 nvlink 4 100; ": the number of links and their GB/s.
inline std::string links_of(const Topology& topology) {
  std::string text;
  for (const atoll::TopologyLink& one : topology.links)
    text +=
        fmt::format("{} - {} {} {} {}; ", one.a, one.b, one.type, one.count, or_dash(one.gbyte_s));
  return text;
}
// "a/gpu0 numa 1 (a.xml), not 0 (b.txt); "
inline std::string conflicts_of(const Topology& topology) {
  std::string text;
  for (const atoll::TopologyConflict& one : topology.conflicts)
    text +=
        fmt::format("{} {} {}, not {}; ", one.subject, one.member, one.believed, one.contradiction);
  return text;
}

inline bool mentions(const std::vector<atoll::Finding>& findings, const std::string& text) {
  for (const atoll::Finding& finding : findings)
    if (contains(atoll::to_line(finding), text)) return true;
  return false;
}

}  // namespace machines
