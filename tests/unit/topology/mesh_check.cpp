// Tests of check_mesh() with meshes that were made by hand.
#include <doctest/doctest.h>

#include <array>

#include "unit/topology/mesh.hpp"

using atoll::IslandState;
using machines::gpu;
using namespace meshes;

TEST_CASE("mesh check: a mesh that crosses islands says what it joins and what is lost") {
  Topology topology = machines::hgx(2);
  const auto ranks = fill_hosts(topology, 0);
  const Finding finding = only(check_mesh(topology, ranks, by_hand(1, 16)));
  CHECK(finding.id == "mesh_crosses_islands");
  CHECK(finding.severity == atoll::Severity::warning);
  CHECK(finding.subjects == std::vector<std::string>{"a", "b"});
  CHECK(atoll::to_line(finding) ==
        "shard group 0 crosses islands: it joins NVLink island a/gpu0-7 (8 ranks), NVLink island "
        "b/gpu0-7 (8 ranks), over the network, whose rate no source provides, instead of 450 GB/s "
        "a GPU; every gather and reduction of the group waits for the links that it crosses; a "
        "shard axis of 8 stays inside the islands");

  machines::add_nic(topology, "a", 400);
  machines::add_nic(topology, "b", 200);
  // The eight GPUs of host b share the 25 GB/s of its NIC.
  CHECK(contains(only(check_mesh(topology, ranks, by_hand(1, 16))).evidence,
                 "over the network at 3.125 GB/s a GPU instead of 450 GB/s, 144 times less"));
}

TEST_CASE("mesh check: only NICs that are up and real carry, for the GPUs that are used") {
  Topology topology = machines::hgx(2);
  for (const std::string host : {"a", "b"})
    for (int i = 0; i < 4; ++i) machines::add_nic(topology, host, 400, "mlx5_" + std::to_string(i));
  topology.nics[2].state = "down";
  topology.nics[3].is_virtual = true;
  std::vector<RankSite> ranks;
  for (const std::string host : {"a", "b"})
    for (int i = 0; i < 2; ++i) ranks.push_back({host, gpu(host, i)});
  // Host a has two usable NICs for eight GPUs. Both GPUs in use send through the same NIC of 50
  // GB/s, so each of them gets 25 GB/s.
  CHECK(contains(only(check_mesh(topology, ranks, by_hand(1, 4))).evidence,
                 "at 25 GB/s a GPU instead of 450 GB/s, 18 times less"));
}

TEST_CASE("mesh check: across the islands of a host, over PCIe") {
  Topology topology = divided_host();
  const auto ranks = fill_hosts(topology, 0);
  const auto evidence = [&] { return only(check_mesh(topology, ranks, by_hand(1, 4))).evidence; };
  CHECK(contains(evidence(),
                 "over the PCIe links of the host at 31.51 GB/s a GPU instead of 300 GB/s, 9.52 "
                 "times less"));
  // The emulated PCIe links of virtual machines and idle PCIe links give no rate.
  topology.hosts[0].facts = {{"virtual_machine", "yes"}};
  CHECK(contains(evidence(), "whose rate no source provides, instead of 300 GB/s a GPU"));
  topology.hosts[0].facts.clear();
  topology.gpus[0].facts = {{"pci.gt_s", "2.5"}, {"pci.width", "16"}};
  CHECK(contains(evidence(), "whose rate no source provides"));
}

TEST_CASE("mesh check: by the launch order that is given") {
  const Topology topology = machines::hgx(2);
  const std::vector<RankSite> ranks = alternating_ranks();
  const auto findings = check_mesh(topology, ranks, by_hand(2, 8));
  REQUIRE(findings.size() == 2);
  // The shape fits into the islands, so the order of the ranks is the reason.
  CHECK(contains(findings[0].evidence,
                 "The order of the ranks is the reason, not the shape: rank 0 is on NVLink island "
                 "a/gpu0-7, rank 1 on NVLink island b/gpu0-7"));
  CHECK(contains(findings[0].fix, "leave out --mesh"));
  CHECK(contains(findings[0].fix, "mpirun --map-by ppr:N:node"));
  // Here the shape of the mesh is the reason.
  CHECK(check_mesh(topology, ranks, by_hand(1, 16))[0].fix ==
        "a shard axis of 8 stays inside the islands");
  MeshPlan sorted = by_hand(2, 8);
  for (int i = 0; i < 16; ++i) sorted.order[static_cast<std::size_t>(i)] = i % 8 * 2 + i / 8;
  CHECK(check_mesh(topology, ranks, sorted).empty());
}

TEST_CASE("mesh check: shard groups are strided where there are tensor ranks") {
  const Topology topology = machines::hgx(2);
  const std::vector<RankSite> ranks = alternating_ranks();
  // Ranks 0, 2, 4, ... are on host a, and the other ranks are on host b. Each shard group stays
  // inside a host, and each tensor group crosses the hosts.
  const auto findings = check_mesh(topology, ranks, by_hand(1, 8, 2));
  REQUIRE(findings.size() == 8);
  CHECK(findings[0].evidence.starts_with("tensor group 0 crosses islands"));
  CHECK(contains(findings[0].fix, "leave out --mesh"));
  // With ranks in host order, both shard groups of a row cross the same hosts, so a single finding
  // reports both groups.
  const Finding strided = only(check_mesh(topology, fill_hosts(topology, 0), by_hand(1, 8, 2)));
  CHECK(strided.evidence.starts_with("shard group 0 crosses islands"));
  CHECK(strided.fix == "a shard axis of 4 stays inside the islands");
}

TEST_CASE("mesh check: emulated islands and hosts of CPUs") {
  const Topology topology = machines::cpus(1);
  const auto findings =
      check_mesh(topology, fill_hosts(topology, 8), by_hand(2, 4), {.emulated_islands = 4});
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].evidence ==
        "shard group 0 crosses islands: it joins emulated island 0 (2 ranks), emulated island 1 (2 "
        "ranks)");
  Topology two = machines::cpus(2);
  for (const std::string host : {"a", "b"}) machines::add_nic(two, host, 100);
  CHECK(only(check_mesh(two, fill_hosts(two, 4), by_hand(1, 4))).evidence ==
        "shard group 0 crosses islands: it joins host a (2 ranks), host b (2 ranks), over the "
        "network at 6.25 GB/s a rank");
}

TEST_CASE("mesh check: many rows are summed up") {
  const Topology topology = machines::cpus(2);
  MeshPlan mesh = by_hand(20, 2);
  for (int row = 0; row < 20; ++row) {
    mesh.order[static_cast<std::size_t>(2 * row)] = row;
    mesh.order[static_cast<std::size_t>(2 * row + 1)] = 20 + row;
  }
  const auto findings = check_mesh(topology, fill_hosts(topology, 40), mesh);
  REQUIRE(findings.size() == 9);
  CHECK(findings.back().id == "mesh_crosses_islands");
  CHECK(findings.back().evidence == "12 other shard groups cross islands as well");
}

TEST_CASE("mesh check: what is no mesh is refused") {
  const Topology topology = machines::cpus(1);
  const auto ranks = fill_hosts(topology, 4);
  for (const auto& [replicate, shard, tensor] :
       {std::array{2, 3, 1}, {0, 4, 1}, {-1, -4, 1}, {2, 2, 2}, {2, 2, 0}, {1 << 30, 1 << 30, 4}}) {
    MeshPlan mesh;
    mesh.replicate = replicate, mesh.shard = shard, mesh.tensor = tensor;
    CHECK(refusal([&] { check_mesh(topology, ranks, mesh); }) != "");
  }
  MeshPlan mesh = by_hand(2, 2);
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{}, {0, 1, 2}, {0, 1, 2, 2}, {0, 1, 2, 4}, {0, 1, 2, -1}}) {
    mesh.order = order;
    CHECK(refusal([&] { check_mesh(topology, ranks, mesh); }) != "");
  }
}
