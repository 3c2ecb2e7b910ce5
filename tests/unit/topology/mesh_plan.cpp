#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "unit/topology/mesh.hpp"

using atoll::IslandState;
using machines::gpu;
using namespace meshes;

namespace {

// Returns a rack of hosts (trays) with 4 GPUs each. All GPUs of the rack share NVLink switches.
Topology rack(int trays) {
  Topology topology;
  for (int i = 0; i < trays; ++i) {
    const std::string host = "tray" + std::to_string(i);
    machines::add_host(topology, host, 4, IslandState::known);
    for (int j = 0; j < 4; ++j) machines::link(topology, gpu(host, j), "rack:0", 18, 50);
  }
  return topology;
}

// Adds a NIC beside each GPU of a host. NIC i is on leaf switch `leaves[i]`.
void add_nics(Topology& topology, const std::string& host, const std::vector<int>& leaves) {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const std::string number = std::to_string(i);
    const std::string path = "pci0000:0" + number + "/00000000:0" + number + ":01.0";
    atoll::TopologyNic& nic = machines::add_nic(topology, host, 400, "mlx5_" + number);
    nic.pci_path = path;
    nic.facts = {{"leaf", "leaf" + std::to_string(leaves[i])}};
    for (atoll::TopologyGpu& one : topology.gpus)
      if (one.id == gpu(host, static_cast<int>(i))) one.pci_path = path;
  }
}

std::vector<std::string> gpus_in_order(const MeshPlan& plan, const std::vector<RankSite>& ranks) {
  std::vector<std::string> gpus;
  for (const int rank : plan.order) gpus.push_back(ranks[static_cast<std::size_t>(rank)].gpu);
  return gpus;
}

}  // namespace

TEST_CASE("mesh plan: shapes of common machines, and why") {
  Topology racks = rack(2), boards, boxes;
  for (const std::string host : {"x", "y"}) {
    machines::add_host(racks, host, 4, IslandState::known);
    for (int i = 0; i < 4; ++i) machines::link(racks, gpu(host, i), "rack:1", 18, 50);
    machines::add_host(boxes, host, 8, IslandState::none);
  }
  for (const std::string host : {"a", "b", "c"}) {
    machines::add_host(boards, host, 4, IslandState::known);
    machines::join_all(boards, host, {0, 1, 2, 3}, 6);
  }
  struct Case {
    Topology topology;
    const char *shape, *why;
  };
  const std::vector<Case> cases{
      {machines::hgx(1), "1x8x1",
       "shard over all 8 GPUs of an NVLink island, which holds every rank"},
      {machines::hgx(3), "3x8x1",
       "shard over 8 GPUs of an NVLink island, replicate over 3 NVLink islands"},
      {racks, "2x8x1", "shard over 8 GPUs of an NVLink island, replicate over 2 NVLink islands"},
      {boards, "3x4x1", "shard over 4 GPUs of an NVLink island, replicate over 3 NVLink islands"},
      {boxes, "2x8x1", "shard over 8 GPUs of a host, replicate over 2 hosts"}};
  for (const Case& one : cases) {
    const MeshPlan found = plan(one.topology);
    CHECK(shape(found) == one.shape);
    CHECK(found.why == one.why);
    CHECK(found.left_out.empty());
    CHECK(found.findings.empty());
  }
  CHECK(plan(machines::hgx(3)).order == counting(24));
  // With two boards in one host, the host is larger than an island.
  Topology twins;
  machines::add_host(twins, "a", 8, IslandState::known);
  machines::join_all(twins, "a", {0, 1, 2, 3}, 6);
  machines::join_all(twins, "a", {4, 5, 6, 7}, 6);
  CHECK(shape(plan(twins)) == "1x8x1");
}

TEST_CASE("mesh plan: the map follows the machine, not the launch order") {
  const Topology topology = machines::hgx(2);
  std::vector<RankSite> ranks;
  for (int i = 0; i < 8; ++i)
    for (const std::string host : {"b", "a"}) ranks.push_back({host, gpu(host, 7 - i)});
  const MeshPlan interleaved = plan_mesh(topology, ranks);
  CHECK(shape(interleaved) == "2x8x1");
  // The topology lists host a first, so the first row is on host a. Within a row, GPU numbers
  // ascend.
  CHECK(interleaved.order ==
        std::vector<int>{15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0});
  CHECK(interleaved.findings.empty());

  std::mt19937 random(7);
  for (const Topology& machine : {machines::hgx(3), pair_hosts(3, 2), rack(4)}) {
    std::vector<RankSite> sites = fill_hosts(machine, 0);
    const auto expected = gpus_in_order(plan_mesh(machine, sites), sites);
    for (int i = 0; i < 5; ++i) {
      std::ranges::shuffle(sites, random);
      CHECK(gpus_in_order(plan_mesh(machine, sites), sites) == expected);
    }
  }
}

TEST_CASE("mesh plan: columns follow the leaf switches that a fabric file names") {
  Topology topology;
  machines::add_switched(topology, "a", 4);
  machines::add_switched(topology, "b", 4);
  add_nics(topology, "a", {0, 1, 2, 3});
  add_nics(topology, "b", {1, 0, 3, 2});  // the cables of host b are crossed between leaf switches
  const MeshPlan crossed = plan(topology);
  CHECK(crossed.order == std::vector<int>{0, 1, 2, 3, 5, 4, 7, 6});

  // Without leaf switches in the topology, NICs in equal positions are assumed to share a leaf
  // switch.
  for (atoll::TopologyNic& nic : topology.nics) nic.facts.clear();
  CHECK(plan(topology).order == counting(8));
}

TEST_CASE("mesh plan: 64 GPUs of an NVL72") {
  const Topology topology = rack(18);
  const auto ranks = fill_hosts(topology, 64);
  const MeshPlan whole = plan_mesh(topology, ranks);
  expect_plan(whole, "1x64x1",
              "shard over all 64 GPUs of an NVLink island, which holds every rank");
  CHECK(whole.order == counting(64));
  CHECK(whole.findings.empty());

  // The smallest candidate for a shard group is the part of the island that is on one host.
  const double memory = 192 * gib;
  const MeshPlan small = plan_mesh(topology, ranks, {.params = 7e9, .gpu_memory_bytes = memory});
  expect_plan(small, "16x4x1", "a host of 4 holds 614 GiB; shard over 4 GPUs of a host");
  CHECK(small.findings.empty());
  const MeshPlan large = plan_mesh(topology, ranks, {.params = 70e9, .gpu_memory_bytes = memory});
  CHECK(shape(large) == "1x64x1");
}

TEST_CASE("mesh plan: a host of bridged pairs is wider than its islands") {
  const MeshPlan pairs = plan(pair_hosts(2, 2));
  expect_plan(pairs, "2x4x1", "shard over 4 GPUs of a host, replicate over 2 hosts");
  CHECK(pairs.order == counting(8));
  REQUIRE(pairs.findings.size() == 2);
  CHECK(pairs.findings[0].id == "mesh_crosses_islands");
  CHECK(pairs.findings[0].subjects == std::vector<std::string>{"a"});
  CHECK(pairs.findings[0].evidence ==
        "shard group 0 crosses islands: it joins NVLink island a/gpu0-1 (2 ranks), NVLink island "
        "a/gpu2-3 (2 ranks), over the PCIe links of the host, whose rate no source provides, "
        "instead of 100 GB/s a GPU");
  CHECK(pairs.findings[0].fix == "a shard axis of 2 stays inside the islands");
}

TEST_CASE("mesh plan: rows of a divided host break where its islands do") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::join_all(topology, "a", {0, 2});
  machines::join_all(topology, "a", {1, 3});
  machines::add_host(topology, "b", 4, IslandState::known);
  machines::join_all(topology, "b", {0, 1});
  machines::join_all(topology, "b", {2, 3});
  // The model needs 200 GiB, and each pair of GPUs provides 256 GiB.
  const MeshPlan pairs = plan(topology, {.params = 200 * gib / 16, .gpu_memory_bytes = 160 * gib});
  CHECK(shape(pairs) == "4x2x1");
  CHECK(pairs.order == std::vector<int>{0, 2, 1, 3, 4, 5, 6, 7});
  CHECK(pairs.findings.empty());
  // If every row is a whole host, the GPUs of a column have equal numbers.
  CHECK(plan(topology).order == counting(8));
}

TEST_CASE("mesh plan: CPU hosts") {
  const Topology topology = machines::cpus(2);
  expect_plan(plan_mesh(topology, fill_hosts(topology, 8)), "2x4x1",
              "shard over 4 ranks of a host, replicate over 2 hosts");

  expect_plan(plan_mesh(topology, fill_hosts(topology, 2)), "2x1x1",
              "nothing to shard over: each host holds 1 rank; replicate over 2 hosts");
  CHECK(plan_mesh(topology, fill_hosts(topology, 1)).why ==
        "one rank: nothing to shard or replicate over");
  // The topology does not list the hosts, so the plan knows only how many hosts there are.
  const MeshPlan unlisted = plan_mesh(Topology{}, {{"y", ""}, {"x", ""}, {"y", ""}, {"x", ""}});
  CHECK(shape(unlisted) == "2x2x1");
  CHECK(unlisted.order == std::vector<int>{1, 3, 0, 2});
}

TEST_CASE("mesh plan: emulated islands follow the ranks' order") {
  const Topology topology = machines::cpus(1);
  const auto ranks = fill_hosts(topology, 8);
  const MeshPlan four = plan_mesh(topology, ranks, {.emulated_islands = 4});
  expect_plan(four, "4x2x1",
              "shard over 2 ranks of an emulated island, replicate over 4 emulated islands");
  CHECK(four.order == counting(8));
  CHECK(four.findings.empty());
  CHECK(refusal([&] { plan_mesh(topology, ranks, {.emulated_islands = 3}); }) ==
        "8 ranks cannot form 3 equal emulated islands");
  CHECK(refusal([&] { plan_mesh(topology, ranks, {.emulated_islands = -1}); }) != "");

  // Emulated islands are planned like hosts, so a shard group may span several emulated islands
  // when the model needs them.
  expect_plan(plan_mesh(topology, ranks,
                        {.emulated_islands = 4, .params = 3e9, .gpu_memory_bytes = 16 * gib}),
              "2x4x1",
              "2 emulated islands (51.2 GiB) are the fewest that hold the model; shard over 4 "
              "ranks of 2 emulated islands, replicate over 2 such groups");
  // On hosts with GPUs, emulated islands replace the real islands.
  CHECK(shape(plan(machines::hgx(1), {.emulated_islands = 4})) == "4x2x1");
}

TEST_CASE("mesh plan: unknown links are taken as one group") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  machines::add_host(topology, "b", 4);
  const MeshPlan unknown = plan(topology);
  expect_plan(unknown, "2x4x1", "shard over 4 GPUs of a host, replicate over 2 hosts");
  const Finding finding = only(unknown.findings);
  CHECK(finding.id == "links_unknown");
  CHECK(finding.severity == atoll::Severity::info);
  CHECK(finding.subjects == std::vector<std::string>{"a", "b"});
  CHECK(finding.evidence == "no source says how the GPUs of a and 1 other host are joined");
}

TEST_CASE("mesh plan: tensor ranks are GPUs of one island below the shard axis") {
  const Topology topology = machines::hgx(3);
  const MeshPlan two = plan(topology, {.tensor = 2});
  expect_plan(two, "3x4x2",
              "shard over 4 x 2 GPUs (2 below the shard axis) of an NVLink island, replicate "
              "over 3 NVLink islands");
  CHECK(two.order == counting(24));
  CHECK(two.findings.empty());
  CHECK(shape(plan(topology, {.tensor = 4})) == "3x2x4");
  expect_plan(plan(topology, {.tensor = 8}), "3x1x8",
              "nothing to shard over: each NVLink island holds 8 GPUs, all below the shard "
              "axis; replicate over 3 NVLink islands");

  // The GPU numbers of the two pairs interleave. The two GPUs of a pair become the tensor ranks.
  Topology pairs;
  machines::add_host(pairs, "a", 4, IslandState::known);
  machines::join_all(pairs, "a", {0, 2});
  machines::join_all(pairs, "a", {1, 3});
  const MeshPlan bridged = plan(pairs, {.tensor = 2});
  CHECK(shape(bridged) == "1x2x2");
  CHECK(bridged.order == std::vector<int>{0, 2, 1, 3});
  CHECK(find(bridged.findings, "mesh_crosses_islands").evidence.starts_with("shard group 0"));

  // Inner ranks also work on hosts without GPUs and in emulated islands.
  const Topology cpus = machines::cpus(2);
  CHECK(shape(plan_mesh(cpus, fill_hosts(cpus, 8), {.tensor = 2})) == "2x2x2");
  CHECK(shape(plan_mesh(cpus, fill_hosts(cpus, 8), {.emulated_islands = 4, .tensor = 2})) ==
        "4x1x2");
}

TEST_CASE("mesh plan: tensor ranks that do not fit an island are refused") {
  CHECK(refusal([] { plan(machines::hgx(2), {.tensor = 3}); }) ==
        "3 tensor ranks do not fit: the NVLink island on a has 8 ranks, a number that 3 does not "
        "divide");
  CHECK(contains(refusal([] { plan(machines::hgx(2), {.tensor = 16}); }), "has 8 ranks"));
  CHECK(contains(refusal([] { plan(pair_hosts(1, 2), {.tensor = 4}); }), "has 2 ranks"));
  CHECK(refusal([] { plan(machines::hgx(1), {.tensor = 0}); }) != "");
  Topology boxes;
  machines::add_host(boxes, "a", 8, IslandState::none);
  CHECK(contains(refusal([&] { plan(boxes, {.tensor = 2}); }), "an island has 1 GPU"));
  // One GPU lost its links, which splits the host into islands of 7 GPUs and 1 GPU.
  Topology broken;
  machines::add_host(broken, "a", 8, IslandState::known);
  machines::join_all(broken, "a", {0, 1, 2, 4, 5, 6, 7});
  CHECK(contains(refusal([&] { plan(broken, {.tensor = 2}); }), "has 7 ranks"));
}

TEST_CASE("mesh plan: what is no job is refused") {
  const Topology topology = machines::cpus(1);
  CHECK(refusal([&] { plan_mesh(topology, {}); }) == "a mesh needs at least one rank");
  CHECK(contains(refusal([&] {
                   plan_mesh(topology, {{"a", "a/gpu9"}});
                 }),
                 "rank 0 uses GPU a/gpu9, which the topology does not list"));
}
