#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "sources/hwloc_graph.hpp"
#include "sources/nvlink_rate.hpp"
#include "sources/source.hpp"
#include "unit/topology_machines.hpp"

using atoll::Island;
using atoll::IslandState;
using atoll::Topology;
namespace sources = atoll::topology_sources;

namespace {

// One package with 2 cores of one thread, under `devices` (PCI) and `distances`.
struct XmlMachine {
  std::string version = "2.12.0";
  std::string devices = {};
  std::string distances = {};

  std::string text() const {
    constexpr std::string_view sets =
        R"(cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" )"
        R"(complete_nodeset="0x00000001")";
    std::string cores;
    for (int i = 0; i < 2; ++i) {
      const auto own = fmt::format(
          R"(os_index="{}" cpuset="0x{}" complete_cpuset="0x{}" nodeset="0x1" complete_nodeset="0x1")",
          i, i + 1, i + 1);
      cores += fmt::format(
          R"(<object type="Core" {} gp_index="{}"><object type="PU" {} gp_index="{}"/></object>)",
          own, 10 + i, own, 20 + i);
    }
    return fmt::format(
        R"(<?xml version="1.0" encoding="UTF-8"?>
<topology version="2.0">
<object type="Machine" os_index="0" {0} allowed_cpuset="0x00000003" allowed_nodeset="0x00000001" gp_index="1">
<info name="hwlocVersion" value="{1}"/>
<object type="Package" os_index="0" {0} gp_index="2">
<object type="NUMANode" os_index="0" {0} gp_index="3" local_memory="1073741824"/>
{2}</object>
<object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]">
{3}</object>
</object>
{4}</topology>
)",
        sets, version, cores, devices, distances);
  }
};

std::string pci(int number, const std::string& type, const std::string& inner) {
  return fmt::format(
      R"(<object type="PCIDev" gp_index="{}" pci_busid="0000:{:02x}:00.0" pci_type="{}" pci_link_speed="0.0">{}</object>
)",
      100 + number, number, type, inner);
}

std::string gpu(int number, int index, const std::string& model) {
  return pci(number, "0302 [10de:2330] [10de:16c1] a1",
             fmt::format(R"(<object type="OSDev" gp_index="{}" name="nvml{}" subtype="NVML" )"
                         R"(osdev_type="1"><info name="GPUModel" value="{}"/>)"
                         R"(<info name="NVIDIAUUID" value="GPU-{}"/></object>)",
                         200 + number, index, model, index));
}

std::string matrix(const std::vector<std::string>& objects, const std::vector<int>& values) {
  const std::string indexes = fmt::format("{} ", fmt::join(objects, " "));
  const std::string cells = fmt::format("{} ", fmt::join(values, " "));
  const bool same_type = objects[0].find(':') == std::string::npos;
  return fmt::format(
      R"(<distances2{0} {1}nbobjs="{2}" kind="{3}" name="NVLinkBandwidth"{4}>
<indexes length="{5}">{6}</indexes>
<u64values length="{7}">{8}</u64values>
</distances2{0}>
)",
      same_type ? "" : "hetero", same_type ? R"(type="OSDev" )" : "", objects.size(),
      same_type ? 9 : 25, same_type ? R"( indexing="gp")" : "", indexes.size(), indexes,
      cells.size(), cells);
}

Topology read(const XmlMachine& machine) {
  const std::string text = machine.text();
  hwloc_topology_t raw = nullptr;
  REQUIRE(hwloc_topology_init(&raw) == 0);
  const sources::HwlocTopology hwloc(raw);
  REQUIRE(hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0);
  REQUIRE(hwloc_topology_set_xmlbuffer(raw, text.c_str(), static_cast<int>(text.size() + 1)) == 0);
  REQUIRE(hwloc_topology_load(raw) == 0);
  Topology topology;
  atoll::TopologyHost host;
  host.id = host.name = "h";
  sources::add_host(raw, host, hwloc_topology_get_allowed_cpuset(raw), topology);
  return topology;
}

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / fmt::format("atoll_sysfs_{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("hwloc: a synthetic machine, and a process bound to a part of it") {
  hwloc_topology_t raw = nullptr;
  REQUIRE(hwloc_topology_init(&raw) == 0);
  const sources::HwlocTopology hwloc(raw);
  REQUIRE(hwloc_topology_set_synthetic(raw, "pack:2 [numa(memory=1GB)] core:4 pu:2") == 0);
  REQUIRE(hwloc_topology_load(raw) == 0);
  const sources::Bitmap usable(hwloc_bitmap_alloc());
  hwloc_bitmap_set_range(usable.get(), 0, 4);  // two and a half cores
  Topology topology;
  atoll::TopologyHost host;
  host.id = "h";
  sources::add_host(raw, host, usable.get(), topology);
  REQUIRE(topology.hosts.size() == 1);
  host = topology.hosts[0];
  CHECK(host.packages == 2);
  CHECK(host.numa_nodes == 2);
  CHECK(host.host_cores == 8);
  CHECK(host.host_threads == 16);
  CHECK(host.cores == 3);
  CHECK(host.threads == 5);
  CHECK(host.memory_bytes == 2'000'000'000);
  CHECK(host.gpu_links == IslandState::unknown);
}

TEST_CASE("hwloc: GPUs with and without NVML, and a graphics card that is no GPU of ours") {
  XmlMachine machine;
  machine.devices = gpu(0x1b, 0, "NVIDIA H100 80GB HBM3") +
                    pci(0x2c, "0302 [10de:2330] [10de:16c1] a1",
                        R"(<info name="PCIDevice" value="GH100 [H100 SXM5 80GB]"/>)") +
                    pci(0x03, "0300 [1a03:2000] [1a03:2000] 41", "");
  const Topology topology = read(machine);
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[0].id == "h/gpu0");
  CHECK(topology.gpus[0].busid == "00000000:1b:00.0");
  CHECK(topology.gpus[0].model == "NVIDIA H100 80GB HBM3");
  CHECK(topology.gpus[0].uuid == "GPU-0");
  CHECK(topology.gpus[0].index == 0);
  CHECK(topology.gpus[0].numa == 0);
  CHECK(topology.gpus[1].model == "GH100 [H100 SXM5 80GB]");
  CHECK(topology.gpus[1].index == -1);
  // No matrix: unknown, never none.
  const auto islands = find_islands(topology);
  REQUIRE(islands.size() == 1);
  CHECK(islands[0].state == IslandState::unknown);
}

TEST_CASE("hwloc: a matrix of pairs becomes links") {
  XmlMachine machine;
  for (int i = 3; i >= 0; --i) machine.devices += gpu(0x10 + i, i, "NVIDIA H100");
  std::vector<int> values(16, 150'000);
  for (std::size_t i = 0; i < 4; ++i) values[5 * i] = 1'000'000;
  machine.distances = matrix({"216", "217", "218", "219"}, values);
  const Topology topology = read(machine);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  REQUIRE(topology.gpus.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(topology.gpus[static_cast<std::size_t>(i)].index == i);
  REQUIRE(topology.links.size() == 6);
  CHECK(topology.links[0].count == 6);
  const auto islands = find_islands(topology);
  REQUIRE(islands.size() == 1);
  CHECK(islands[0].pair_gbyte_s == 150);
  CHECK(islands[0].gpu_gbyte_s == 450);
}

TEST_CASE("hwloc: up to 2.9.0 the matrix counts generations 3 and 4 twice") {
  const auto rate = [](const std::string& version, const std::string& model) {
    XmlMachine machine{.version = version, .devices = gpu(0x10, 0, model) + gpu(0x11, 1, model)};
    machine.distances = matrix({"216", "217"}, {0, 600'000, 600'000, 0});
    const Topology topology = read(machine);
    REQUIRE(topology.links.size() == 1);
    return topology.links[0];
  };
  CHECK(rate("2.9.0", "NVIDIA A100").gbyte_s == 300);
  CHECK(rate("2.9.0", "NVIDIA A100").count == 12);
  CHECK(rate("2.9.1", "NVIDIA A100").gbyte_s == 600);
  CHECK(rate("2.9.0", "Tesla V100").gbyte_s == 600);
  CHECK_FALSE(rate("2.9.0", "something new").gbyte_s);
  CHECK(rate("2.12.0", "something new").gbyte_s == 600);
  CHECK(rate("2.12.0", "something new").count == 1);
}

TEST_CASE("hwloc: switches join GPUs, processors do not") {
  XmlMachine machine;
  for (int i = 0; i < 2; ++i) machine.devices += gpu(0x10 + i, i, "NVIDIA H100");
  // A switch may show neither class nor vendor: its subtype tells.
  machine.devices += R"(<object type="PCIDev" gp_index="150" subtype="NVSwitch" )"
                     R"(pci_busid="0000:66:00.0" pci_type="0680 [0000:0000] [0000:0000] 00" )"
                     R"(pci_link_speed="0.0"/>)";
  machine.distances = matrix({"OSDev:216", "OSDev:217", "PCIDev:150"},
                             {0, 0, 125'000, 0, 0, 125'000, 125'000, 125'000, 0});
  Topology topology = read(machine);
  REQUIRE(topology.links.size() == 2);
  CHECK(topology.links[0].b == "h/nvswitch0");
  CHECK(topology.links[0].count == 5);
  CHECK(find_islands(topology).size() == 1);

  machine.distances = matrix({"OSDev:216", "OSDev:217", "Package:2"},
                             {0, 0, 75'000, 0, 0, 75'000, 75'000, 75'000, 0});
  topology = read(machine);
  REQUIRE(topology.links.size() == 2);
  CHECK(topology.links[0].type == "nvlink_cpu");
  CHECK(find_islands(topology).size() == 2);
}

TEST_CASE("hwloc: a matrix of zeros proves nothing") {
  XmlMachine machine{.version = "2.9.2", .devices = gpu(0x10, 0, "x") + gpu(0x11, 1, "x")};
  machine.distances = matrix({"216", "217"}, {1'000'000, 0, 0, 1'000'000});
  const Topology topology = read(machine);
  CHECK(topology.links.empty());
  CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("hwloc and sysfs: NICs with state, layer and rate") {
  const auto adapter = [](int number, const std::string& type, const std::string& name,
                          const std::string& ports) {
    return pci(number, type,
               fmt::format(R"(<object type="OSDev" gp_index="{}" name="{}" osdev_type="3">)"
                           R"(<info name="SysImageGUID" value="ab:{}"/>{}</object>)",
                           300 + number, name, number, ports));
  };
  const auto port = [](int number, int state) {
    return fmt::format(R"(<info name="Port{}State" value="{}"/>)", number, state);
  };
  XmlMachine machine;
  machine.devices =
      adapter(0x40, "0207 [15b3:1021] [15b3:0023] 00", "mlx5_0", port(1, 4)) +
      adapter(0x41, "0200 [15b3:1021] [15b3:0023] 00", "mlx5_1", port(1, 1)) +
      adapter(0x42, "0207 [15b3:1003] [15b3:0023] 00", "mlx4_0", port(1, 4) + port(2, 2));
  Topology topology = read(machine);
  REQUIRE(topology.nics.size() == 4);
  CHECK(topology.nics[0].id == "h/mlx5_0");
  CHECK(topology.nics[0].busid == "00000000:40:00.0");
  CHECK(topology.nics[0].layer == "infiniband");
  CHECK(topology.nics[0].state == "active");
  CHECK_FALSE(topology.nics[0].rate_gbit_s);
  CHECK(topology.nics[1].layer == "ethernet");
  CHECK(topology.nics[1].state == "down");
  CHECK(topology.nics[3].name == "mlx4_0:2");
  CHECK(topology.nics[3].state == "init");
  CHECK(topology.nics[3].adapter == topology.nics[2].adapter);

  const Folder sysfs;
  sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  sysfs.write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
  sysfs.write("class/infiniband/mlx5_1/ports/1/rate", "10 Gb/sec (4X SDR)\n");
  sysfs.write("class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  sysfs.write("class/infiniband/mlx4_0/ports/1/rate", "many\n");
  sysfs.write("class/infiniband/mlx4_0/ports/2/rate", "56 Gb/sec (4X FDR)\n");
  sysfs.write("class/infiniband/mlx4_0/ports/2/state", "4: ACTIVE\n");
  sysfs.write("class/infiniband/mlx4_0/ports/2/link_layer", "Ethernet\n");
  sources::sysfs.look({.host_id = "h", .host_name = "h", .sysfs = sysfs.path()}, topology);
  CHECK(topology.nics[0].rate_gbit_s == 400);
  CHECK(topology.nics[0].evidence == "sysfs");
  CHECK_FALSE(topology.nics[1].rate_gbit_s);
  CHECK_FALSE(topology.nics[2].rate_gbit_s);
  CHECK(topology.nics[3].rate_gbit_s == 56);
  CHECK(topology.nics[3].layer == "ethernet");
  CHECK(topology.nics[3].state == "active");
}

TEST_CASE("hwloc: rates of a link by model") {
  CHECK(sources::nvlink_rate("NVIDIA GB200")->gbyte_s == 50);
  CHECK(sources::nvlink_rate("NVIDIA H200")->generation == 4);
  CHECK(sources::nvlink_rate("NVIDIA H20-3e")->gbyte_s == 25);
  CHECK(sources::nvlink_rate("Tesla P100-SXM2-16GB")->gbyte_s == 20);
  CHECK_FALSE(sources::nvlink_rate("Tesla T4"));
}

TEST_CASE("live: this host") {
  const Topology topology = Topology::discover_local();
  REQUIRE(topology.hosts.size() == 1);
  const auto& host = topology.hosts[0];
  CHECK_FALSE(host.id.empty());
  CHECK(host.id == host.name);
  CHECK(host.cores >= 1);
  CHECK(host.threads >= host.cores);
  CHECK(host.host_cores >= host.cores);
  CHECK(host.memory_bytes > 0);
  CHECK(Topology::discover_local("some id").hosts[0].id == "some id");
  CHECK(Topology::from_json(topology.to_json(), "live").to_json() == topology.to_json());
  std::size_t gpus = 0;
  for (const Island& island : find_islands(topology)) gpus += island.gpus.size();
  CHECK(gpus == topology.gpus.size());
}

TEST_CASE("live: a bound process sees what it may use") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const Topology topology = Topology::discover_local();
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(topology.hosts[0].cores == 1);
  CHECK(topology.hosts[0].threads == 1);
  CHECK(topology.hosts[0].host_threads >= CPU_COUNT(&before));
}
