#include <doctest/doctest.h>

#include "gpu_models.hpp"
#include "inspect/derived.hpp"
#include "unit/topology/machines.hpp"

using atoll::Island;
using atoll::IslandState;
using atoll::Topology;
using machines::gpu;
using machines::islands_of;

namespace {

std::vector<std::size_t> sizes(const std::vector<Island>& islands) {
  std::vector<std::size_t> result;
  for (const Island& island : islands) result.push_back(island.gpus.size());
  return result;
}

using Sizes = std::vector<std::size_t>;

}  // namespace

TEST_CASE("islands: bridged pairs") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::link(topology, gpu("a", 0), gpu("a", 1), 4);
  machines::link(topology, gpu("a", 3), gpu("a", 2), 4);
  REQUIRE(islands_of(topology) == "2 known nvlink 100 100; 2 known nvlink 100 100; ");
  const auto islands = find_islands(topology);
  CHECK(islands[0].gpus == std::vector<std::string>{"a/gpu0", "a/gpu1"});
  CHECK(islands[1].gpus == std::vector<std::string>{"a/gpu2", "a/gpu3"});
  CHECK(islands[0].hosts == std::vector<std::string>{"a"});
}

TEST_CASE("islands: a connected set that is no clique has no rate for a pair") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  for (int i = 0; i < 4; ++i) machines::link(topology, gpu("a", i), gpu("a", (i + 1) % 4));
  CHECK(islands_of(topology) == "4 known nvlink 50 - uneven; ");
}

TEST_CASE("islands: a weaker pair shows in the rates, and an unknown rate leaves them unknown") {
  Topology topology;
  machines::add_host(topology, "a", 3, IslandState::known);
  machines::join_all(topology, "a", {0, 1, 2}, 2);
  topology.links[0].gbyte_s = 25;
  CHECK(islands_of(topology) == "3 known nvlink 75 25 uneven; ");
  for (auto& link : topology.links) link.gbyte_s.reset();
  CHECK(islands_of(topology) == "3 known nvlink - -; ");
}

TEST_CASE("islands: switches of one host are one fabric") {
  // The host has two boards. Each GPU sees only the NVSwitches of its board, and no source
  // shows the trunk links between the boards.
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  for (int i = 0; i < 4; ++i)
    for (int s = 0; s < 2; ++s)
      machines::link(topology, gpu("a", i), "a/nvswitch" + std::to_string(i / 2 * 2 + s));
  CHECK(islands_of(topology) == "4 known nvlink 50 50; ");
}

TEST_CASE("islands: switches of two hosts are two fabrics, a rack's switch is one") {
  CHECK(sizes(find_islands(machines::hgx(2))) == Sizes{8, 8});
  Topology rack;
  for (const std::string host : {"a", "b", "c"}) {
    machines::add_host(rack, host, 4, IslandState::known);
    for (int i = 0; i < 4; ++i) machines::link(rack, gpu(host, i), "rack 7", 18, 50);
  }
  REQUIRE(islands_of(rack) == "12 known nvlink 900 900; ");
  CHECK(find_islands(rack)[0].hosts == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("islands: a GPU that lost its links is alone beside its neighbours") {
  Topology topology = machines::hgx(1);
  machines::add_host(topology, "b", 8, IslandState::known);
  machines::join_all(topology, "b", {0, 1, 2, 4, 5, 6, 7});
  REQUIRE(islands_of(topology) == "8 known nvlink 450 450; 7 known nvlink 600 100; 1 none - - -; ");
  CHECK(find_islands(topology)[2].gpus.front() == "b/gpu3");
}

TEST_CASE("islands: no links seen is unknown, not none") {
  Topology topology;
  machines::add_host(topology, "a", 8);
  CHECK(islands_of(topology) == "8 unknown - - -; ");
  topology.hosts[0].gpu_links = IslandState::none;
  const auto islands = find_islands(topology);
  REQUIRE(sizes(islands) == Sizes(8, 1));
  for (const Island& island : islands) CHECK(island.state == IslandState::none);
}

TEST_CASE("islands: a silent GPU beside linked ones is unknown where the source did not show all") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  machines::link(topology, gpu("a", 0), gpu("a", 1));
  CHECK(islands_of(topology) == "2 known nvlink 25 25; 2 unknown - - -; ");
  topology.hosts[0].gpu_links = IslandState::known;
  CHECK(sizes(find_islands(topology)) == Sizes{2, 1, 1});
}

TEST_CASE("islands: links to processors, over PCI and to itself join nothing") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::link(topology, gpu("a", 0), gpu("a", 1), 3);
  machines::link(topology, gpu("a", 2), gpu("a", 2));
  for (int i = 0; i < 4; ++i)
    topology.links.push_back(
        {.a = gpu("a", i), .b = "a/package0", .type = "nvlink_cpu", .count = 3, .gbyte_s = 75});
  topology.links.push_back(
      {.a = gpu("a", 2), .b = gpu("a", 3), .type = "pci", .count = 1, .gbyte_s = {}});
  CHECK(sizes(find_islands(topology)) == Sizes{2, 1, 1});
}

TEST_CASE("islands: a host without GPUs is one island of its CPUs") {
  Topology topology = machines::cpus(1);
  machines::add_switched(topology, "g", 2);
  machines::add_host(topology, "z");
  REQUIRE(islands_of(topology) == "0 known cpu - -; 2 known nvlink 450 450; 0 known cpu - -; ");
  CHECK(find_islands(topology)[2].hosts == std::vector<std::string>{"z"});
  CHECK(find_islands(Topology{}).empty());
}

TEST_CASE("merge: what occurs twice is taken once") {
  const Topology one = machines::hgx(1), two = machines::hgx(2);
  const Topology all = atoll::merge({one, two, one});
  CHECK(all.hosts.size() == 2);
  CHECK(all.gpus.size() == 16);
  CHECK(all.links.size() == 16);
  CHECK(islands_of(all) == "8 known nvlink 450 450; 8 known nvlink 450 450; ");
  CHECK(atoll::merge({}).hosts.empty());
}

TEST_CASE("islands: a fabric that the driver completed joins hosts") {
  Topology topology;
  for (const std::string host : {"a", "b", "c"}) machines::add_switched(topology, host, 4);
  for (auto& one : topology.gpus)
    one.facts = {{"fabric.state", "completed"},
                 {"fabric.cluster", "00000001-0000-0000-0000-000000000001"},
                 {"fabric.clique", "2"}};
  REQUIRE(islands_of(topology) == "12 known nvlink 450 450; ");
  CHECK(find_islands(topology)[0].hosts == std::vector<std::string>{"a", "b", "c"});

  SUBCASE("each partition of a fabric is a separate island") {
    for (int i = 8; i < 12; ++i)
      topology.gpus[static_cast<std::size_t>(i)].facts["fabric.clique"] = "3";
    CHECK(sizes(find_islands(topology)) == Sizes{8, 4});
  }
  SUBCASE("a fabric that is not completed joins no hosts") {
    for (auto& one : topology.gpus) one.facts["fabric.state"] = "in_progress";
    CHECK(sizes(find_islands(topology)) == Sizes{4, 4, 4});
  }
  SUBCASE("nor does one that failed, or names no clique") {
    for (auto& one : topology.gpus) one.facts["fabric.status"] = "insufficient resources";
    CHECK(sizes(find_islands(topology)) == Sizes{4, 4, 4});
    for (auto& one : topology.gpus) one.facts.erase("fabric.status");
    for (auto& one : topology.gpus) one.facts.erase("fabric.clique");
    CHECK(sizes(find_islands(topology)) == Sizes{4, 4, 4});
  }
  SUBCASE("a cluster of zeros is no cluster: a single HGX host reports it") {
    for (auto& one : topology.gpus)
      one.facts["fabric.cluster"] = "00000000-0000-0000-0000-000000000000";
    CHECK(sizes(find_islands(topology)) == Sizes{4, 4, 4});
  }
}

TEST_CASE("islands: a reported fabric is known without a link, and its bandwidth is not") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  for (auto& one : topology.gpus)
    one.facts = {{"fabric.state", "completed"}, {"fabric.cluster", "7"}, {"fabric.clique", "0"}};
  CHECK(islands_of(topology) == "4 known nvlink - -; ");
}

TEST_CASE("islands: xGMI hives; hive 0 is none") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  for (int i = 0; i < 3; ++i)
    topology.gpus[static_cast<std::size_t>(i)].facts["xgmi.hive"] = "0x5a";
  topology.gpus[3].facts["xgmi.hive"] = "0";
  CHECK(islands_of(topology) == "3 known xgmi - -; 1 none - - -; ");
  machines::add_host(topology, "b", 1);  // an xGMI hive does not span hosts
  topology.gpus[4].facts["xgmi.hive"] = "0x5a";
  CHECK(find_islands(topology).size() == 3);
}

TEST_CASE("links: more than a model has hang on a switch") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::join_all(topology, "a", {0, 1, 2, 3}, 6);
  for (auto& one : topology.gpus) one.model = "Tesla V100-SXM3-32GB";
  for (auto& link : topology.links) link.gbyte_s.reset();
  atoll::show_hidden_switches(topology);
  atoll::fill_link_rates(topology);
  REQUIRE(topology.links.size() == 4);
  CHECK(islands_of(topology) == "4 known nvlink 150 150; ");

  Topology board;  // Each GPU has 18 links, as an H100 has.
  machines::add_host(board, "a", 4, IslandState::known);
  machines::join_all(board, "a", {0, 1, 2, 3}, 6);
  for (auto& one : board.gpus) one.model = "NVIDIA H100 80GB HBM3";
  atoll::show_hidden_switches(board);
  CHECK(board.links.size() == 6);
}

TEST_CASE("join: machines that were described apart are different machines") {
  const Topology all = atoll::join_hosts({machines::hgx(2), machines::hgx(1), machines::hgx(1)});
  REQUIRE(all.hosts.size() == 4);
  CHECK(all.hosts[2].id == "a-2");
  CHECK(all.hosts[2].name == "a-2");
  CHECK(all.hosts[3].id == "a-3");
  CHECK(all.gpus[16].id == "a-2/gpu0");
  CHECK(all.links[16].b == "a-2/nvswitch0");
  CHECK(sizes(find_islands(all)) == Sizes{8, 8, 8, 8});
  const auto racks = [] {
    Topology rack;
    machines::add_host(rack, "t0", 4, IslandState::known);
    for (int i = 0; i < 4; ++i) machines::link(rack, gpu("t0", i), "rack:7", 18, 50);
    return rack;
  };
  CHECK(sizes(find_islands(atoll::join_hosts({racks(), racks()}))) == Sizes{4, 4});
  CHECK(atoll::join_hosts({}).hosts.empty());
}

TEST_CASE("islands: a model proves absence, never presence") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  for (auto& one : topology.gpus) one.model = "NVIDIA H100 80GB HBM3";
  CHECK(islands_of(topology) == "4 unknown - - -; ");
  for (const char* model :
       {"Tesla T4", "NVIDIA L20", "Tesla P100-PCIE-16GB", "NVIDIA GeForce RTX 5090"}) {
    topology.gpus[0].model = topology.gpus[2].model = model;
    CHECK(islands_of(topology) == "1 none - - -; 2 unknown - - -; 1 none - - -; ");
  }
  topology.gpus[0].model = topology.gpus[2].model = "some card";
  CHECK(sizes(find_islands(topology)) == Sizes{4});
  topology.gpus[0].model = topology.gpus[2].model = "Tesla T4";
  // A GPU without a model name is recognised by its PCI device id.
  topology.gpus[1].model = topology.gpus[3].model = "";
  topology.gpus[1].facts["pci.device"] = topology.gpus[3].facts["pci.device"] = "10de:1eb8";
  CHECK(sizes(find_islands(topology)) == Sizes{1, 1, 1, 1});
}
