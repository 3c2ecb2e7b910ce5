// Measures the time to discover this machine, and the time to load each given machine file. Without
// MACHINE the files are those in the folder of captured machines. For comparison, measures libhwloc
// alone on the same input: live discovery, and the import of hwloc XML files.
//   topology [--json FILE] [MACHINE...]
// Each printed time is the median of 9 runs. Exits with 1 if live discovery takes 100 ms or more,
// or if loading a file takes 50 ms or more.
#include <fmt/core.h>
#include <hwloc.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "atoll/tooling/inspection.hpp"
#include "atoll/tooling/load.hpp"

namespace {

namespace fs = std::filesystem;

constexpr double live_target_ms = 100;
constexpr double file_target_ms = 50;

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

// Loads a machine by libhwloc alone. An empty `xml` means the machine on which the bench runs.
void load_hwloc(const std::string& xml) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return;
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  for (const char* component : {"opencl", "gl"})
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (!xml.empty()) hwloc_topology_set_xml(topology, xml.c_str());
  hwloc_topology_load(topology);
  hwloc_topology_destroy(topology);
}

bool is_hwloc_xml(const std::string& path) {
  std::ifstream file(path);
  std::string head(512, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  return head.find("<topology") != std::string::npos;
}

struct Row {
  std::string machine;
  std::size_t gpus = 0;
  double read_ms = 0, inspect_ms = 0;
  std::optional<double> hwloc_ms;
  double target_ms = 0;
};

Row measure(const std::string& machine, const std::function<atoll::Topology()>& read,
            double target_ms) {
  Row row{.machine = machine, .hwloc_ms = std::nullopt, .target_ms = target_ms};
  atoll::Topology topology;
  row.read_ms = median_ms([&] { topology = read(); });
  row.gpus = topology.gpus.size();
  row.inspect_ms = median_ms([&] { atoll::inspect(topology); });
  return row;
}

std::vector<std::string> default_machines() {
  std::vector<std::string> machines;
  const fs::path folder = ATOLL_TEST_SHARED_DIR "/topologies";
  if (fs::exists(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      if (const auto kind = entry.path().extension(); kind == ".xml" || kind == ".txt")
        machines.push_back(entry.path().string());
  std::ranges::sort(machines);
  for (const auto& entry : atoll::catalog()) machines.push_back(entry.name);
  return machines;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_path;
  std::vector<std::string> machines;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json" && i + 1 < argc)
      json_path = argv[++i];
    else
      machines.emplace_back(argv[i]);
  }
  if (machines.empty()) machines = default_machines();
  std::vector<Row> rows{measure(
      "(this host, live)", [] { return atoll::Topology::discover_local(); }, live_target_ms)};
  rows[0].hwloc_ms = median_ms([] { load_hwloc(""); });
  for (const std::string& machine : machines) {
    rows.push_back(measure(
        machine, [&] { return atoll::load_topology(machine); }, file_target_ms));
    if (is_hwloc_xml(machine)) rows.back().hwloc_ms = median_ms([&] { load_hwloc(machine); });
  }
  bool met = true;
  auto json = nlohmann::json::array();
  fmt::print("{:40} {:>5} {:>9} {:>11} {:>13} {:>10}\n", "machine", "gpus", "read_ms", "inspect_ms",
             "libhwloc_ms", "target_ms");
  for (const Row& row : rows) {
    met = met && row.read_ms < row.target_ms;
    fmt::print("{:40} {:>5} {:>9.2f} {:>11.2f} {:>13} {:>10.0f}\n",
               fs::path(row.machine).filename().string(), row.gpus, row.read_ms, row.inspect_ms,
               row.hwloc_ms ? fmt::format("{:.2f}", *row.hwloc_ms) : "", row.target_ms);
    json.push_back({{"machine", fs::path(row.machine).filename().string()},
                    {"gpus", row.gpus},
                    {"read_ms", row.read_ms},
                    {"inspect_ms", row.inspect_ms},
                    {"libhwloc_ms", row.hwloc_ms ? nlohmann::json(*row.hwloc_ms) : nullptr},
                    {"target_ms", row.target_ms}});
  }
  fmt::print("all under their targets: {}\n", met ? "yes" : "NO");
  if (!json_path.empty())
    std::ofstream(json_path) << nlohmann::json{{"rows", json}}.dump(1) << '\n';
  return met ? 0 : 1;
}
