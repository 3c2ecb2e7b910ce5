// Tests of reading machines that hwloc describes. Every file is read twice, with libhwloc and
// without it, and both results must be equal.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>

#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/captured_tree.hpp"
#include "unit/hwloc_machines.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using atoll::TopologyGpu;
using atoll::TopologyNic;
using namespace machines;
using topology_test::check_facts;
using topology_test::nics_of;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;
using namespace hwloc_machines;

namespace {

Topology read(const XmlMachine& machine) {
  const std::string text = machine.text();
  Topology topology = read_with_libhwloc(text, "h");
  CHECK(atoll::importers::hwloc_xml.read(text, "h.xml").to_json() == topology.to_json());
  return topology;
}

std::vector<std::string> ids(const Topology& topology) {
  std::vector<std::string> ids;
  for (const TopologyGpu& gpu : topology.gpus) ids.push_back(gpu.id);
  return ids;
}

using Ids = std::vector<std::string>;

}  // namespace

TEST_CASE("hwloc: a synthetic machine, and a process bound to a part of it") {
  hwloc_topology_t raw = nullptr;
  REQUIRE(hwloc_topology_init(&raw) == 0);
  const sources::HwlocTopology hwloc(raw);
  REQUIRE(hwloc_topology_set_synthetic(
              raw, "pack:2 [numa(memory=1GB)] l3:1(size=33554432) core:4 pu:2") == 0);
  REQUIRE(hwloc_topology_load(raw) == 0);
  const sources::Bitmap usable(hwloc_bitmap_alloc());
  hwloc_bitmap_set_range(usable.get(), 0, 4);  // allow five threads, which are two and a half cores
  Topology topology;
  atoll::TopologyHost host;
  host.id = "h";
  sources::add_host(sources::describe(raw, usable.get()), host, topology);
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
  CHECK(get_fact(host.facts, "package.1") == "4 cores, L3 32 MiB");
}

TEST_CASE("hwloc: caches of a package, and the provider of the machine") {
  const auto cache = [](const char* type, int level, int bytes, int kind,
                        const std::string& inner) {
    return fmt::format(
        "<object type=\"{}\" {} gp_index=\"{}\" cache_size=\"{}\" depth=\"{}\" "
        "cache_linesize=\"64\" cache_associativity=\"8\" cache_type=\"{}\">{}</object>\n",
        type, sets("3"), 60 + 10 * level + kind, bytes, level, kind, inner);
  };
  XmlMachine machine;
  machine.parts = fmt::format(
      "<object type=\"Package\" os_index=\"0\" {} gp_index=\"2\">\n{}{}</object>\n", sets("3"),
      node(0, "3"),
      cache("L2Cache", 2, 1310720, 0,
            cache("L1Cache", 1, 49152, 1, cache("L1iCache", 1, 32768, 2, cores(0, 2)))));
  for (const auto& [key, value, cloud] :
       {std::array{"DMIChassisAssetTag", "7783-7084-3265-9085-8269-3286-77", "azure"},
        std::array{"DMIChassisAssetTag", "OracleCloud.com", "oracle"},
        std::array{"DMIProductName", "Google Compute Engine", "google"},
        std::array{"DMIProductName", "PowerEdge XE8640", ""}}) {
    machine.parts = info(key, value) + machine.parts.substr(machine.parts.find("<object"));
    const Topology topology = read(machine);
    const atoll::Facts& facts = topology.hosts[0].facts;
    CHECK(get_fact(facts, "package.0") == "2 cores, L2 1280 KiB, L1d 48 KiB");
    CHECK(get_fact(facts, fact::cloud) == cloud);
  }
}

TEST_CASE("hwloc: GPUs with and without NVML, and a graphics card that is no GPU of ours") {
  XmlMachine machine;
  machine.devices = gpu(0x1b, 0, "NVIDIA H100 80GB HBM3") +
                    pci(0x2c, h100, info("PCIDevice", "GH100 [H100 SXM5 80GB]")) +
                    pci(0x2d, h100, "") + pci(0x03, "0300 [1a03:2000] [1a03:2000] 41", "");
  const Topology topology = read(machine);
  REQUIRE(topology.gpus.size() == 3);
  // The model name of the last GPU was derived from the PCI device id.
  CHECK(gpus_of(topology) ==
        "h/gpu0 00000000:1b:00.0 index 0 numa 0 NVIDIA H100 80GB HBM3; "
        "h/gpu1 00000000:2c:00.0 index -1 numa 0 GH100 [H100 SXM5 80GB]; "
        "h/gpu2 00000000:2d:00.0 index -1 numa 0 NVIDIA H100 80GB HBM3; ");
  CHECK(topology.gpus[0].uuid == "GPU-0a");
  check_facts(topology.gpus[0].facts, "pci.device 10de:2330; pci.class 0302; pci.gbyte_s");
  CHECK(get_fact(topology.hosts[0].facts, fact::hwloc_version) == "2.12.0");
  // Without a bandwidth matrix, the links between GPUs are unknown. They must never be reported as
  // absent.
  CHECK(islands_of(topology) == "3 unknown - - -; ");
}

TEST_CASE("hwloc: the way to a device, as sysfs spells it") {
  XmlMachine machine;
  const auto bridge = [](int id, const std::string& busid, const std::string& below,
                         const std::string& inner) {
    return fmt::format(
        "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"1-1\" depth=\"1\" "
        "bridge_pci=\"0000:[{}]\" pci_busid=\"{}\" "
        "pci_type=\"0604 [8086:352a] [8086:0000] 04\" pci_link_speed=\"0.0\">{}"
        "</object>",
        id, below, busid, inner);
  };
  machine.parts = fmt::format(
      "<object type=\"Package\" os_index=\"0\" {} gp_index=\"2\">{}{}</object>"
      "<object type=\"Bridge\" gp_index=\"5\" bridge_type=\"0-1\" depth=\"0\" "
      "bridge_pci=\"0000:[15-18]\">{}{}</object>",
      sets("3"), node(0, "3"), cores(0, 2),
      bridge(
          6, "0000:15:01.0", "16-18",
          bridge(7, "0000:16:00.0", "17-17", pci(0x17, h100, "", "pci_link_speed=\"63.015385\""))),
      pci(0x15, "0207 [15b3:1021] [15b3:0041] 00", os(600, "mlx5_0", 3)));
  const Topology topology = read(machine);
  REQUIRE(topology.gpus.size() == 1);
  CHECK(topology.gpus[0].pci_path == "pci0000:15/00000000:15:01.0/00000000:16:00.0");
  CHECK(get_fact(topology.gpus[0].facts, fact::pci_gbyte_s) == "63.0154");
  REQUIRE(topology.nics.size() == 1);
  CHECK(topology.nics[0].pci_path == "pci0000:15");
}

TEST_CASE("hwloc: what is near a device, and when nothing tells") {
  const Topology topology = read(packages(
      {pci(0x10, h100, ""), pci(0x11, h100, ""), pci(0x12, h100, ""), pci(0x13, h100, "")}));
  const auto& host = topology.hosts[0];
  CHECK(host.packages == 2);
  CHECK(host.numa_nodes == 4);
  CHECK(host.host_cores == 4);
  std::string places;
  for (const TopologyGpu& gpu : topology.gpus)
    places += fmt::format("package {} node {}; ", gpu.package, gpu.numa);
  // GPUs 0 and 2 are near both nodes of their package, so their node is unknown.
  CHECK(places == "package 0 node -1; package 0 node 1; package 8 node -1; package -1 node -1; ");
}

TEST_CASE("hwloc: memory of a GPU is no node, memories of two kinds are one") {
  XmlMachine machine;
  machine.nodes = "7";
  machine.parts =
      fmt::format("<object type=\"Package\" os_index=\"0\" {} gp_index=\"2\">{}{}{}{}</object>",
                  sets("3", "7"), node(0, "3"), node(1, "3", "subtype=\"HBM\""),
                  node(2, "3", "subtype=\"GPUMemory\""), cores(0, 2, "7")) +
      pci(0x10, h100, "");
  const Topology topology = read(machine);
  CHECK(topology.hosts[0].numa_nodes == 1);
  CHECK(topology.hosts[0].memory_bytes == std::uint64_t{2} << 30);
  CHECK(topology.gpus[0].numa == 0);
}

TEST_CASE("hwloc: GPUs are numbered as NVML does, not as CUDA shows them") {
  const auto both = [](int bus, int nvml, int cuda) {
    return pci(bus, h100,
               os(400 + bus, fmt::format("cuda{}", cuda), 5) +
                   (nvml < 0 ? "" : os(500 + bus, fmt::format("nvml{}", nvml), 1)));
  };
  XmlMachine machine;
  machine.devices = both(0x10, 0, 1) + both(0x11, 1, 0);
  CHECK(ids(read(machine)) == Ids{"h/gpu0", "h/gpu1"});
  // NVML's GPU indices may be in the reverse order of PCI bus ids.
  machine.devices = both(0x10, 1, 0) + both(0x11, 0, 1);
  CHECK(ids(read(machine)) == Ids{"h/gpu1", "h/gpu0"});
  machine.devices = both(0x10, -1, 1) + both(0x11, -1, 0);
  CHECK(ids(read(machine)) == Ids{"h/gpu1", "h/gpu0"});
  // One GPU has no NVML index, because only CUDA shows it. So all GPUs get indices in the order of
  // the file.
  machine.devices = both(0x10, 1, 0) + both(0x11, -1, 1);
  const Topology topology = read(machine);
  CHECK(gpus_of(topology) ==
        "h/gpu0 00000000:10:00.0 index 1 numa 0 NVIDIA H100 80GB HBM3; "
        "h/gpu1 00000000:11:00.0 index -1 numa 0 NVIDIA H100 80GB HBM3; ");
}

TEST_CASE("hwloc: GPUs whose PCI devices are hidden") {
  XmlMachine machine;
  machine.os_devices = os(401, "nvml1", 1, info("GPUModel", "NVIDIA H100")) + os(400, "nvml0", 1) +
                       os(402, "cuda0", 5);
  const Topology topology = read(machine);
  CHECK(gpus_of(topology) == "h/gpu0 - index 0 numa 0 -; h/gpu1 - index 1 numa 0 NVIDIA H100; ");
}

TEST_CASE("hwloc: a matrix of pairs becomes links") {
  XmlMachine machine;
  for (int i = 3; i >= 0; --i) machine.devices += gpu(0x10 + i, i, "NVIDIA H100");
  std::vector<int> values(16, 150'000);
  for (std::size_t i = 0; i < 4; ++i) values[5 * i] = 1'000'000;
  machine.distances = matrix({"416", "417", "418", "419"}, values);
  const Topology topology = read(machine);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  REQUIRE(topology.gpus.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(topology.gpus[static_cast<std::size_t>(i)].index == i);
  REQUIRE(topology.links.size() == 6);
  CHECK(topology.links[0].count == 6);
  CHECK(islands_of(topology) == "4 known nvlink 450 150; ");
}

TEST_CASE("hwloc: up to 2.9.0 the matrix counts generations 3 and 4 twice") {
  const auto link = [](const std::string& version, const std::string& model) {
    XmlMachine machine{.version = version, .devices = gpu(0x10, 0, model) + gpu(0x11, 1, model)};
    // A model without a name must not be known by its PCI device id either, so the id is unknown.
    if (model.empty())
      machine.devices = pci(0x10, "0302 [10de:ffff] [0000:0000] a1", os(416, "nvml0", 1)) +
                        pci(0x11, "0302 [10de:ffff] [0000:0000] a1", os(417, "nvml1", 1));
    machine.distances = matrix({"416", "417"}, {0, 600'000, 600'000, 0});
    const Topology topology = read(machine);
    return links_of(topology).substr(std::string("h/gpu0 - h/gpu1 nvlink ").size());
  };
  CHECK(link("2.9.0", "NVIDIA A100") == "12 300; ");
  CHECK(link("2.9.1", "NVIDIA A100") == "24 600; ");
  CHECK(link("2.9.0", "Tesla V100") == "24 600; ");
  CHECK(link("2.12.0", "NVIDIA B200") == "12 600; ");
  CHECK(link("2.9.0", "") == "1 -; ");
  CHECK(link("2.12.0", "") == "1 600; ");
}

TEST_CASE("hwloc: switches join GPUs, processors do not") {
  XmlMachine machine;
  for (int i = 0; i < 2; ++i) machine.devices += gpu(0x10 + i, i, "NVIDIA H100");
  // A switch without PCI class and vendor is recognised by its hwloc subtype.
  machine.devices += pci(0x66, "0000 [0000:0000] [0000:0000] 00", "",
                         "subtype=\"NVSwitch\" pci_link_speed=\"0.0\"") +
                     pci(0x67, "0680 [10de:22a3] [10de:0000] a1", "",
                         "subtype=\"NVSwitch\" pci_link_speed=\"0.0\"");
  machine.distances = matrix({"OSDev:416", "OSDev:417", "PCIDev:202", "PCIDev:203"},
                             {0, 0, 125'000, 100'000, 0, 0, 125'000, 100'000,  //
                              125'000, 125'000, 0, 0, 100'000, 100'000, 0, 0});
  Topology topology = read(machine);
  CHECK(links_of(topology) ==
        "h/gpu0 - h/nvswitch0 nvlink 5 125; h/gpu0 - h/nvswitch1 nvlink 4 100; "
        "h/gpu1 - h/nvswitch0 nvlink 5 125; h/gpu1 - h/nvswitch1 nvlink 4 100; ");
  CHECK(islands_of(topology) == "2 known nvlink 225 225; ");

  machine.distances = matrix({"OSDev:416", "OSDev:417", "Package:2"},
                             {0, 0, 75'000, 0, 0, 75'000, 75'000, 75'000, 0});
  topology = read(machine);
  CHECK(links_of(topology) ==
        "h/gpu0 - h/package0 nvlink_cpu 3 75; h/gpu1 - h/package0 nvlink_cpu 3 75; ");
  CHECK(islands_of(topology) == "1 none - - -; 1 none - - -; ");
}

TEST_CASE("hwloc: pairs of zeros prove nothing, whatever the diagonal is") {
  XmlMachine machine{.version = "2.9.2", .devices = gpu(0x10, 0, "x") + gpu(0x11, 1, "x")};
  for (const int diagonal : {1'000'000, 0}) {
    machine.distances = matrix({"416", "417"}, {diagonal, 0, 0, diagonal});
    const Topology topology = read(machine);
    CHECK(topology.links.empty());
    CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
  }
}

TEST_CASE("hwloc: models without a connector need no matrix") {
  const auto links = [](const std::string& a, const std::string& b) {
    XmlMachine machine;
    machine.devices =
        pci(0x10, "0302 [10de:ffff] [0000:0000] a1", os(400, "nvml0", 1, info("GPUModel", a))) +
        pci(0x11, "0302 [10de:ffff] [0000:0000] a1", os(401, "nvml1", 1, info("GPUModel", b)));
    return read(machine).hosts[0].gpu_links;
  };
  CHECK(links("Tesla T4", "Tesla T4") == IslandState::none);
  CHECK(links("Tesla T4", "Tesla V100-SXM2-16GB") == IslandState::unknown);
  CHECK(links("Tesla T4", "Tesla V100-PCIE-16GB") == IslandState::none);
}

TEST_CASE("hwloc: AMD's GPUs, with and without ROCm") {
  XmlMachine machine;
  machine.devices = amd(0x10, 0, info("AMDUUID", "0a1b")) +
                    amd(0x11, 1, info("AMDUUID", "0000000000000000")) +
                    pci(0x12, "0380 [1002:740c] [1002:0b0c] 01", "") +
                    // A GPU that is integrated in a processor must not be reported.
                    pci(0x13, "0300 [1002:164e] [1002:0000] c1", os(413, "renderD128", 1));
  const Topology topology = read(machine);
  REQUIRE(gpus_of(topology) ==
          "h/gpu0 00000000:10:00.0 index 0 numa 0 AMD Instinct MI300X; "
          "h/gpu1 00000000:11:00.0 index 1 numa 0 AMD Instinct MI300X; "
          "h/gpu2 00000000:12:00.0 index -1 numa 0 AMD Instinct MI250X; ");
  CHECK(topology.gpus[0].uuid == "0a1b");
  CHECK(topology.gpus[1].uuid.empty());
  CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("hwloc: xGMI links have no rate, for hwloc's is a constant") {
  XmlMachine machine;
  for (int i = 0; i < 3; ++i) machine.devices += amd(0x10 + i, i, info("XGMIHiveID", "00ab3"));
  machine.distances = matrix(
      {"416", "417", "418"},
      {1'000'000, 100'000, 100'000, 100'000, 1'000'000, 100'000, 100'000, 100'000, 1'000'000},
      "XGMIBandwidth");
  const Topology topology = read(machine);
  CHECK(links_of(topology) ==
        "h/gpu0 - h/gpu1 xgmi 1 -; h/gpu0 - h/gpu2 xgmi 1 -; h/gpu1 - h/gpu2 xgmi 1 -; ");
  CHECK(get_fact(topology.gpus[0].facts, fact::xgmi_hive) == "ab3");
  CHECK(islands_of(topology) == "3 known xgmi - -; ");
}

TEST_CASE("hwloc: hives and peers, where the matrix is missing") {
  const auto links = [](const std::string& infos0, const std::string& infos1) {
    XmlMachine machine;
    machine.devices = amd(0x10, 0, infos0) + amd(0x11, 1, infos1);
    return read(machine);
  };
  const std::string none = info("XGMIHiveID", "0");
  CHECK(links(none, none).hosts[0].gpu_links == IslandState::none);
  CHECK(links(none, "").hosts[0].gpu_links == IslandState::unknown);
  const std::string hive = info("XGMIHiveID", "ab3");
  CHECK(links(hive, hive).hosts[0].gpu_links == IslandState::unknown);
  const Topology topology = links(hive + info("XGMIPeers", "rsmi1 "), hive);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  CHECK(topology.links.size() == 1);
}

TEST_CASE("hwloc: partitions are one GPU") {
  XmlMachine machine;
  const auto partitioned = [](int bus, int first, const std::array<std::string, 2>& infos) {
    return pci(bus, mi300,
               os(400 + 2 * bus, fmt::format("rsmi{}", first), 1, infos[0]) +
                   os(401 + 2 * bus, fmt::format("rsmi{}", first + 1), 1, infos[1]));
  };
  machine.devices = partitioned(0x10, 0, {info("AMDUUID", "a0"), info("AMDUUID", "a1")}) +
                    partitioned(0x11, 2, {info("AMDUUID", "b"), info("AMDUUID", "b")});
  machine.distances =
      matrix({"432", "433", "434", "435"},
             {1'000'000, 100'000, 100'000, 100'000, 100'000, 1'000'000, 100'000, 100'000, 100'000,
              100'000, 1'000'000, 100'000, 100'000, 100'000, 100'000, 1'000'000},
             "XGMIBandwidth");
  const Topology topology = read(machine);
  REQUIRE(ids(topology) == Ids{"h/gpu0", "h/gpu1"});
  CHECK(topology.gpus[0].partitions == Ids{"a0", "a1"});
  // The two partitions report the same UUID, so their hwloc names identify them.
  CHECK(topology.gpus[1].partitions == Ids{"rsmi2", "rsmi3"});
  // The index is unknown, because the name "rsmi2" does not contain it.
  CHECK(topology.gpus[1].index == -1);
  CHECK(topology.links.size() == 1);
}

TEST_CASE("hwloc: NICs with state, layer and adapter") {
  XmlMachine machine;
  const auto guid = [](int number) {
    return info("NodeGUID", fmt::format("ab:{}f", number)) +
           info("SysImageGUID", fmt::format("ab:{}", number));
  };
  machine.devices =
      adapter(0x42, "0207 [15b3:1003] [15b3:0023] 00", "mlx4_0",
              guid(42) + port(1, 4, "0x21") + port(2, 2, "0xffff")) +
      adapter(0x40, "0207 [15b3:1021] [15b3:0023] 00", "mlx5_0", guid(40) + port(1, 4)) +
      adapter(0x41, "0200 [15b3:1021] [15b3:0023] 00", "mlx5_1", guid(41) + port(1, 1));
  const Topology topology = read(machine);
  REQUIRE(nics_of(topology) ==
          "h/mlx5_0 00000000:40:00.0 infiniband active -\n"
          "h/mlx5_1 00000000:41:00.0 ethernet down -\n"
          "h/mlx4_0 00000000:42:00.0 infiniband active -\n"
          "h/mlx4_0:2 00000000:42:00.0 infiniband init -\n");
  check_facts(topology.nics[0].facts, "node_guid ab:40f; pci.device 15b3:1021");
  check_facts(topology.nics[2].facts, "lid 33");
  CHECK(topology.nics[3].adapter == topology.nics[2].adapter);
}

TEST_CASE("hwloc: where the class does not tell InfiniBand from Ethernet, the LID may") {
  const auto layer = [](int state, const std::string& lid) {
    XmlMachine machine;
    machine.devices =
        adapter(0x42, "0280 [15b3:1003] [15b3:0059] 00", "mlx4_0", port(1, state, lid));
    return read(machine).nics.at(0).layer;
  };
  CHECK(layer(4, "0x3a4") == "infiniband");
  CHECK(layer(4, "0x0") == "ethernet");
  CHECK(layer(1, "0xffff").empty());
  // An InfiniBand port that is down also has LID 0 until a subnet manager assigns a LID, so the
  // link layer stays unknown.
  CHECK(layer(1, "0x0").empty());
  CHECK(layer(4, "").empty());
}

TEST_CASE("hwloc: adapters that are neither InfiniBand nor Ethernet") {
  XmlMachine machine;
  machine.os_devices = os(440, "rxe0", 3, port(1, 4, "0x0"));  // RDMA in software
  const std::string zero = "0000:0000:0000:0000";
  machine.devices =
      adapter(0x40, "0200 [1d0f:efa1] [1d0f:efa1] 00", "rdmap64s0",
              info("NodeGUID", zero) + info("SysImageGUID", zero) + port(1, 4, "0x0")) +
      adapter(0x41, "0208 [8086:24f0] [8086:24f0] 11", "hfi1_0", port(1, 4, "0x7ee")) +
      // The PCI vendor distinguishes Slingshot interfaces from IP over InfiniBand interfaces.
      pci(0x42, "0200 [17db:0501] [17db:0000] 02", os(442, "hsi0", 2)) +
      pci(0x43, "0207 [15b3:101b] [15b3:0008] 00", os(443, "hsi1", 2)) +
      pci(0x44, "0208 [8086:24f0] [8086:24f0] 11", os(444, "hsi2", 2)) +
      pci(0x45, "0200 [17db:0501] [17db:0000] 02", os(445, "hsn3", 2) + os(446, "cxi3", 2)) +
      pci(0x46, "0200 [8086:1521] [8086:0000] 01", os(447, "eth0", 2));
  const Topology topology = read(machine);
  std::string found;
  for (const TopologyNic& nic : topology.nics)
    found += nic.name + ' ' + nic.layer + (nic.is_virtual ? " virtual; " : "; ");
  CHECK(found ==
        "rdmap64s0 efa; hfi1_0 omni-path; hsi0 slingshot; cxi3 slingshot; rxe0 ethernet virtual; ");
  CHECK(topology.nics[0].adapter.empty());
  CHECK_FALSE(topology.nics[0].facts.contains(fact::node_guid));
}

TEST_CASE("hwloc: names that occur twice") {
  XmlMachine machine;
  const std::string mellanox = "0207 [15b3:1021] [15b3:0041] 00";
  machine.devices = adapter(0x40, mellanox, "mlx5_0", "") + adapter(0x41, mellanox, "mlx5_0", "");
  CHECK_THROWS_WITH_AS(atoll::importers::hwloc_xml.read(machine.text(), "h.xml"),
                       doctest::Contains("two NICs are called mlx5_0"), atoll::Error);
  machine.devices = pci(0x10, h100, "") + adapter(0x41, mellanox, "gpu0", "");
  CHECK_THROWS_WITH_AS(atoll::importers::hwloc_xml.read(machine.text(), "h.xml"),
                       doctest::Contains("a NIC and a GPU have the same name, gpu0"), atoll::Error);
}

TEST_CASE("live: HWLOC_XMLFILE puts another machine in place of this one") {
  XmlMachine machine;
  machine.devices = gpu(0x10, 0, "NVIDIA H100") + gpu(0x11, 1, "NVIDIA H100");
  const machines::CapturedTree tree;
  tree.write("machine.xml", machine.text());
  REQUIRE(setenv("HWLOC_XMLFILE", tree.path("machine.xml").c_str(), 1) == 0);
  Topology topology;
  sources::hwloc_live({.host_id = "h", .host_name = "n"}, topology);
  unsetenv("HWLOC_XMLFILE");
  REQUIRE(topology.hosts.size() == 1);
  CHECK(topology.hosts[0].id + topology.hosts[0].name == "hn");
  // The number of threads comes from the file, even if this process is bound to fewer threads.
  CHECK(topology.hosts[0].threads == 2);
  CHECK(ids(topology) == Ids{"h/gpu0", "h/gpu1"});
}
