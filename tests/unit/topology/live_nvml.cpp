// Tests of the NVML source with the fake NVML library that is built from fake_nvml.cpp.
#include <doctest/doctest.h>

#include <fmt/format.h>
#include <algorithm>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "sources/nvml_reading.hpp"
#include "sources/source.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using atoll::TopologyGpu;
using atoll::TopologyLink;
using namespace machines;
using topology_test::check_facts;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;

namespace {

// Selects the machine that the fake NVML library shows for the duration of one test.
class Play {
 public:
  explicit Play(const char* machine) { setenv("ATOLL_FAKE_NVML", machine, 1); }
  Play(const Play&) = delete;
  Play& operator=(const Play&) = delete;
  ~Play() { unsetenv("ATOLL_FAKE_NVML"); }
};

enum class Driver {
  current,
  old
};

void look(const CapturedTree& tree, Topology& topology, Driver driver = Driver::current) {
  auto request = tree.request();
  request.nvml = driver == Driver::current ? ATOLL_FAKE_NVML_LIBRARY : ATOLL_FAKE_NVML_OLD_LIBRARY;
  sources::nvml(request, topology);
}

Topology discover(const char* machine, Driver driver = Driver::current) {
  const Play play(machine);
  const CapturedTree tree;
  Topology topology;
  machines::add_host(topology, "h");
  look(tree, topology, driver);
  fill_link_rates(topology);
  return topology;
}

// Returns a GPU as hwloc reports it, with a bus id that the fake NVML library knows.
TopologyGpu pci_gpu(int number, int position) {
  TopologyGpu gpu;
  gpu.id = fmt::format("h/gpu{}", position);
  gpu.host = "h";
  gpu.busid = fmt::format("00000000:{:x}0:00.0", number + 1);
  gpu.model = "GA100 [A100 SXM4 40GB]";
  gpu.numa = number / 2;
  gpu.facts = {{"pci.device", "10de:20b0"}};
  return gpu;
}

// Returns a host with the GPUs of these numbers, in this order, as hwloc reports them.
Topology seen_by_hwloc(const std::vector<int>& numbers) {
  Topology topology;
  machines::add_host(topology, "h");
  for (const int number : numbers)
    topology.gpus.push_back(pci_gpu(number, static_cast<int>(topology.gpus.size())));
  return topology;
}

std::string source_reason(const Topology& topology) {
  return std::string(get_fact(topology.hosts[0].facts, "source.nvml"));
}

int links_between(const Topology& topology, const std::string& a, const std::string& b) {
  int count = 0;
  for (const TopologyLink& link : topology.links)
    if ((link.a == a && link.b == b) || (link.a == b && link.b == a)) count += link.count;
  return count;
}

}  // namespace

TEST_CASE("nvml: a library that is absent, and one that does not start") {
  Topology topology;
  machines::add_host(topology, "h", 2);
  const CapturedTree tree;
  sources::nvml(tree.request(), topology);
  CHECK(source_reason(topology) ==
        tree.path("no such library") + " cannot be opened: No such file or directory");
  CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
  CHECK(topology.gpus.size() == 2);

  topology = discover("no driver");
  CHECK(source_reason(topology) == "NVML: driver not loaded (9)");
  CHECK(topology.gpus.empty());
  CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("nvml: a driver that hangs does not stop discovery") {
  const Play play("hang");
  const auto reading = sources::read_nvml(ATOLL_FAKE_NVML_LIBRARY, std::chrono::milliseconds(100));
  CHECK(reading.failure == "NVML: no answer within 0.1 s");
  CHECK(reading.gpus.empty());
  // Gives the abandoned thread, which hangs for 600 ms in the fake library, time to end by itself.
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
}

TEST_CASE("nvml: HGX H100, with one link down and one GPU out of the fabric") {
  const Topology topology = discover("hgx");
  REQUIRE(topology.gpus.size() == 8);
  CHECK(source_reason(topology).empty());
  CHECK(get_fact(topology.hosts[0].facts, fact::driver_version) == "550.54.15");
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  std::string gpus, links;
  for (std::size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    const TopologyGpu& gpu = topology.gpus[i];
    gpus += fmt::format("h/gpu{} 00000000:{:x}0:00.0 index {} numa -1 NVIDIA H100 80GB HBM3; ", i,
                        i + 1, i);
    CHECK(gpu.uuid == fmt::format("GPU-{}", i));
    links += fmt::format("h/gpu{} - h/nvswitch0 nvlink {}; ", i, i == 3 ? "17 425" : "18 450");
    check_facts(gpu.facts, i == 3   ? "nvlink.total 18; nvlink.active 17; nvlink.errors 0"
                           : i == 2 ? "nvlink.total 18; nvlink.active 18; nvlink.errors 7"
                                    : "nvlink.total 18; nvlink.active 18; nvlink.errors 0");
    check_facts(gpu.facts,
                i == 5 ? "fabric.state in_progress; fabric.status; fabric.health; fabric.cluster"
                       : "fabric.state completed; fabric.status success; fabric.health healthy; "
                         "fabric.cluster 00000000-0000-0000-0000-000000000000");
  }
  CHECK(gpus_of(topology) == gpus);
  CHECK(links_of(topology) == links);
  CHECK(islands_of(topology) == "8 known nvlink 425 425 uneven; ");
}

TEST_CASE("nvml: what it says of a GPU") {
  const Topology topology = discover("hgx");
  REQUIRE(topology.gpus.size() == 8);
  check_facts(topology.gpus[0].facts,
              "sm 90; pci.device 10de:2330; memory_bytes 85899345920; pci.gt_s 2.5; "
              "pci.gt_s_max 32; pci.width 16; pci.replays 0; persistence no; ecc.remap_pending no; "
              "throttle none; power.limit_w 700; mig no");
  check_facts(topology.gpus[1].facts, "persistence yes; power.limit_w 350.5; power.default_w 700");
  check_facts(topology.gpus[4].facts, "ecc.remap_pending yes; ecc.remap_failed no");
  check_facts(topology.gpus[6].facts, "throttle power_cap thermal hw_slowdown");
  check_facts(topology.gpus[7].facts, "pci.width 8; pci.width_max 16; pci.replays 12");
}

TEST_CASE("nvml: fabric across hosts, its health, and counters of generation 5") {
  const Topology topology = discover("blackwell");
  REQUIRE(topology.gpus.size() == 2);
  check_facts(topology.gpus[0].facts,
              "fabric.cluster 00010203-0405-0607-0809-0a0b0c0d0e0f; fabric.clique 32766; "
              "fabric.health healthy; nvlink.errors 2; sm 100");
  check_facts(topology.gpus[1].facts,
              "fabric.health degraded bandwidth, incorrect configuration (insufficient NVLinks)");
  REQUIRE(topology.links.size() == 2);
  CHECK(topology.links[0].gbyte_s == 900);
}

TEST_CASE("nvml: GPUs that have no NVLink, and links that lead nowhere") {
  const Topology topology = discover("t4");
  REQUIRE(topology.gpus.size() == 4);
  CHECK(topology.links.empty());
  CHECK(topology.hosts[0].gpu_links == IslandState::none);
  check_facts(topology.gpus[0].facts, "nvlink.active; mig");
  CHECK(find_islands(topology).size() == 4);
  const Topology nowhere = discover("no bridge");
  CHECK(nowhere.hosts[0].gpu_links == IslandState::none);
  check_facts(nowhere.gpus[1].facts, "nvlink.active 0; nvlink.total 12; nvlink.errors");
}

TEST_CASE("nvml: never a false none") {
  // NVML reports no links for a virtual GPU although its model has links, so the links are unknown.
  CHECK(discover("virtual").hosts[0].gpu_links == IslandState::unknown);
  // The active links lead to bus ids that this machine does not have, so the links are unknown.
  const Topology topology = discover("renumbered");
  CHECK(topology.hosts[0].gpu_links == IslandState::unknown);
  REQUIRE_FALSE(topology.links.empty());
  for (const auto& link : topology.links) CHECK(link.type == "nvlink_unseen");
  for (const auto& island : find_islands(topology)) CHECK(island.state == IslandState::unknown);
  CHECK(get_fact(topology.gpus[0].facts, fact::nvlink_active) == "12");
}

TEST_CASE("nvml: links to processors join no GPUs") {
  Topology topology = discover("power");
  CHECK(links_of(topology) ==
        "h/gpu0 - h/gpu1 nvlink 3 75; h/gpu0 - h/package0 nvlink_cpu 3 -; "
        "h/gpu1 - h/package0 nvlink_cpu 3 -; ");
  CHECK(islands_of(topology) == "2 known nvlink 75 75; ");
}

TEST_CASE("nvml: partitions belong to their GPU") {
  const Topology topology = discover("mig");
  REQUIRE(topology.gpus.size() == 1);
  CHECK(get_fact(topology.gpus[0].facts, fact::mig) == "yes");
  CHECK(topology.gpus[0].partitions == std::vector<std::string>{"MIG-0", "MIG-1"});
  CHECK(get_fact(topology.gpus[0].facts, fact::ecc_remap_pending).empty());
}

TEST_CASE("nvml: a GPU that is lost keeps its place") {
  const Play play("lost");
  const CapturedTree tree;
  Topology topology = seen_by_hwloc({0, 1});
  look(tree, topology);
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[1].uuid.empty());
  CHECK(source_reason(topology) == "NVML: 1 of 2 GPUs cannot be opened: GPU is lost (15)");
}

TEST_CASE("nvml: GPUs of the bus that this process may not use are left out") {
  const Play play("two of a board");
  const CapturedTree tree;
  // hwloc sees all GPUs of the host in a different order than NVML, and one GPU of another vendor.
  Topology topology = seen_by_hwloc({3, 2, 1, 0, 8});
  for (const char* bus : {"10", "20", "30", "40"})
    tree.add_pci(fmt::format("pci0000:00/0000:{}:00.0", bus));
  topology.gpus.back().facts["pci.device"] = "1002:74a1";
  topology.paths.push_back({"h/gpu0", "h/gpu1", atoll::PathLevel::pix});
  topology.paths.push_back({"h/gpu2", "h/gpu3", atoll::PathLevel::pxb});
  look(tree, topology);
  REQUIRE(topology.gpus.size() == 3);
  CHECK(get_fact(topology.hosts[0].facts, fact::hidden_gpus) ==
        "00000000:40:00.0 00000000:30:00.0");
  // The AMD GPU has no NVML index, so all GPUs keep the ids that hwloc gave them.
  CHECK(gpus_of(topology).starts_with("h/gpu2 00000000:20:00.0 index 1 numa 0 "));
  CHECK(topology.gpus[0].uuid == "GPU-1");
  CHECK(topology.gpus[1].id + ' ' + topology.gpus[1].uuid == "h/gpu3 GPU-0");
  REQUIRE(topology.paths.size() == 1);
  CHECK(topology.paths[0].level == atoll::PathLevel::pxb);
  CHECK(std::ranges::count(topology.links, "nvlink", &atoll::TopologyLink::type) == 1);
  CHECK(std::ranges::count(topology.links, "nvlink_unseen", &atoll::TopologyLink::type) == 4);
  CHECK(links_between(topology, "h/gpu2", "h/gpu3") == 4);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
}

TEST_CASE("nvml: a GPU without permission is hidden, not broken") {
  const Play play("denied");
  const CapturedTree tree;
  Topology topology = seen_by_hwloc({0, 1});
  look(tree, topology);
  CHECK(topology.gpus.size() == 1);
  CHECK(source_reason(topology).empty());
  CHECK(get_fact(topology.hosts[0].facts, fact::hidden_gpus) == "00000000:20:00.0");
}

TEST_CASE("nvml: ids follow its numbers") {
  const Play play("board");
  const CapturedTree tree;
  Topology topology = seen_by_hwloc({3, 2, 1, 0});
  topology.paths.push_back({"h/gpu0", "h/gpu1", atoll::PathLevel::pix});
  look(tree, topology);
  CHECK(gpus_of(topology).starts_with(
      "h/gpu0 00000000:10:00.0 index 0 numa 0 NVIDIA A100-SXM4-40GB; "));
  CHECK(topology.gpus.size() == 4);
  CHECK(topology.paths[0].a + topology.paths[0].b == "h/gpu3h/gpu2");
}

TEST_CASE("nvml: hwloc's links are confirmed, or contradicted") {
  const auto with_hwloc = [](int count_of_one_pair) {
    const Play play("board");
    const CapturedTree tree;
    Topology topology = seen_by_hwloc({0, 1, 2, 3});
    topology.hosts[0].gpu_links = IslandState::known;
    machines::join_all(topology, "h", {0, 1, 2, 3});
    topology.links[0].count = count_of_one_pair;
    look(tree, topology);
    return topology;
  };
  Topology topology = with_hwloc(4);
  CHECK(topology.conflicts.empty());
  REQUIRE(topology.links.size() == 6);
  CHECK(topology.links[0].gbyte_s == 100);  // the bandwidth that hwloc reported is kept

  topology = with_hwloc(3);
  CHECK(conflicts_of(topology) == "h/gpu0 - h/gpu1 links 4 (NVML), not 3 (hwloc); ");
  REQUIRE(topology.links.size() == 6);
  CHECK(topology.links[0].count == 4);
}

TEST_CASE("nvml: a library of 2018") {
  Topology topology = discover("board", Driver::old);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  CHECK(topology.links.size() == 6);
  CHECK(topology.gpus[3].index == 3);
  check_facts(topology.gpus[0].facts, "nvlink.errors 12; fabric.state");

  // The switch is not visible, and a driver of 2018 does not report the type of a link's peer.
  topology = discover("hgx", Driver::old);
  REQUIRE(topology.links.size() == 8);
  CHECK(topology.links[7].b == "h/nvswitch0");
  check_facts(topology.gpus[0].facts,
              "fabric.state completed; fabric.clique 3; fabric.cluster "
              "abababab-abab-abab-abab-abababababab; fabric.health");
}

TEST_CASE("nvml: where the library does not name a peer, the PCI bus does") {
  const Play play("power");
  const CapturedTree tree;
  for (int i = 0; i < 3; ++i) {
    const std::string npu = tree.add_pci(fmt::format("pci0004:00/0004:00:0{}.0", i));
    tree.write_lines(npu, "class 0x068000; vendor 0x1014");
  }
  Topology topology;
  machines::add_host(topology, "h");
  look(tree, topology, Driver::old);
  CHECK(links_between(topology, "h/gpu0", "h/gpu1") == 3);
  CHECK(links_between(topology, "h/gpu0", "h/package0") == 3);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
}
