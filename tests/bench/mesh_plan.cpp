// Measures the planning of a mesh for 2,048 hosts with 8 GPUs each, from the description of the
// machine to the order of the 16,384 ranks. For comparison, hashes every id of the machine once,
// which any planner must do.
//   mesh_plan [--json FILE]
// Each printed time is the median of 9 runs. Exits with 1 if sites and mesh together take 100 ms or
// more, or if the process needs 200 MB or more.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "atoll/mesh_plan.hpp"

namespace {

constexpr int hosts = 2048, gpus_of_host = 8, switches_of_host = 4;
constexpr double target_ms = 100, target_mb = 200;

double median_ms(const std::function<void()>& body) {
  constexpr int repeats = 9;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count());
  }
  std::ranges::nth_element(times, times.begin() + repeats / 2);
  return times[repeats / 2];
}

// Adds a host to the machine. Each pair of a GPU and a NIC shares a PCI bridge, as on HGX boards.
void add_host(int number, atoll::Topology& topology) {
  const std::string name = fmt::format("node{:04}", number);
  const std::string id = fmt::format("{}/6f1c2a34-77aa-4d0e-9d55-{:012x}/4026531840", name, number);
  topology.hosts.push_back({.id = id,
                            .name = name,
                            .packages = 2,
                            .numa_nodes = 2,
                            .cores = 96,
                            .threads = 192,
                            .memory_bytes = 2ULL << 40,
                            .host_cores = 96,
                            .host_threads = 192,
                            .gpu_links = atoll::IslandState::known});
  for (int i = 0; i < gpus_of_host; ++i) {
    const std::string path = fmt::format("pci0000:{:02x}/00000000:{:02x}:01.0", 16 * i, 16 * i);
    topology.gpus.push_back({.id = fmt::format("{}/gpu{}", id, i),
                             .host = id,
                             .busid = fmt::format("00000000:{:02x}:00.0", 16 * i + 2),
                             .uuid = fmt::format("GPU-{:08x}-0000-0000-0000-{:012x}", number, i),
                             .model = "NVIDIA H100 80GB HBM3",
                             .index = i,
                             .numa = i / 4,
                             .package = i / 4,
                             .pci_path = path});
    topology.nics.push_back({.id = fmt::format("{}/mlx5_{}", id, i),
                             .host = id,
                             .name = fmt::format("mlx5_{}", i),
                             .busid = fmt::format("00000000:{:02x}:00.0", 16 * i + 3),
                             .adapter = fmt::format("{:08x}:{:08x}", number, i),
                             .layer = "infiniband",
                             .state = "active",
                             .rate_gbit_s = 400,
                             .evidence = "bench",
                             .numa = i / 4,
                             .package = i / 4,
                             .pci_path = path});
    for (int j = 0; j < switches_of_host; ++j)
      topology.links.push_back({.a = topology.gpus.back().id,
                                .b = fmt::format("{}/nvswitch{}", id, j),
                                .type = "nvlink",
                                .count = j < 2 ? 5 : 4,
                                .gbyte_s = j < 2 ? 125 : 100});
  }
}

std::size_t hash_ids(const atoll::Topology& topology) {
  std::unordered_set<std::string_view> ids;
  for (const auto& host : topology.hosts) ids.insert(host.id);
  for (const auto& gpu : topology.gpus) ids.insert(gpu.id);
  for (const auto& nic : topology.nics) ids.insert(nic.id);
  for (const auto& link : topology.links) ids.insert(link.b);
  return ids.size();
}

double peak_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  const char* file = argc == 3 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr;
  if (argc != 1 && !file) {
    fmt::print(stderr, "usage: mesh_plan [--json FILE]\n");
    return 2;
  }
  atoll::Topology topology;
  for (int host = 0; host < hosts; ++host) add_host(host, topology);
  const double machine_mb = peak_mb();

  std::vector<atoll::RankSite> sites;
  std::vector<atoll::Affinity> affinity;
  atoll::MeshPlan plan;
  auto rows = nlohmann::json::array();
  const auto measure = [&](const char* step, const std::function<void()>& body) {
    const double took = median_ms(body);
    fmt::print("{:<44} {:>8.1f}\n", step, took);
    rows.push_back({{"step", step}, {"ms", took}});
    return took;
  };
  fmt::print("{} hosts of {} GPUs{:<26} {:>8}\n", hosts, gpus_of_host, "", "ms");
  const double fill = measure("fill_hosts", [&] { sites = fill_hosts(topology, 0); });
  const double whole = measure("plan_mesh", [&] { plan = plan_mesh(topology, sites); });
  const double planned_mb = peak_mb();
  measure("  including find_islands", [&] { find_islands(topology); });
  measure("  including find_affinity", [&] { affinity = find_affinity(topology); });
  measure("  including find_rails", [&] { find_rails(topology, affinity); });
  measure("plan_mesh for 300e9 parameters in 80 GB",
          [&] { plan_mesh(topology, sites, {.params = 300e9, .gpu_memory_bytes = 80e9}); });
  measure("check_mesh", [&] { check_mesh(topology, sites, plan); });
  const double limit = measure("limit: hashing every id once", [&] { hash_ids(topology); });

  const double total = fill + whole;
  const bool is_fast = total < target_ms, is_small = planned_mb < target_mb;
  fmt::print("a mesh of {}x{} in {:.1f} ms, under {} ms: {}\n", plan.replicate, plan.shard, total,
             target_ms, is_fast ? "yes" : "NO");
  fmt::print("peak {:.0f} MB, including {:.0f} MB for the machine; under {} MB: {}\n", planned_mb,
             machine_mb, target_mb, is_small ? "yes" : "NO");
  if (file)
    std::ofstream(file) << nlohmann::json{{"rows", rows},           {"total_ms", total},
                                          {"target_ms", target_ms}, {"limit_ms", limit},
                                          {"peak_mb", planned_mb},  {"target_mb", target_mb}}
                               .dump(1)
                        << '\n';
  return is_fast && is_small ? 0 : 1;
}
