#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "unit/topology_machines.hpp"

using atoll::Error;
using atoll::ErrorCode;
using atoll::IslandState;
using atoll::MeshPlan;
using atoll::RankSite;
using atoll::Topology;
using machines::gpu;
using machines::mentions;

namespace {

std::vector<int> counting(int size) {
  std::vector<int> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

MeshPlan by_hand(int replicate, int shard) {
  MeshPlan plan;
  plan.replicate = replicate;
  plan.shard = shard;
  plan.order = counting(replicate * shard);
  return plan;
}

ErrorCode code_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("mesh plan: one host of eight") {
  const Topology topology = machines::hgx(1);
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.replicate == 1);
  CHECK(plan.shard == 8);
  CHECK(plan.order == counting(8));
  CHECK(plan.why == "shard over all 8 GPUs of an NVLink island, which holds every rank");
  CHECK(plan.findings.empty());
}

TEST_CASE("mesh plan: three hosts of eight") {
  const Topology topology = machines::hgx(3);
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 24));
  CHECK(plan.replicate == 3);
  CHECK(plan.shard == 8);
  CHECK(plan.order == counting(24));
  CHECK(plan.why == "shard over 8 GPUs of an NVLink island, replicate over 3 NVLink islands");
  CHECK(plan.findings.empty());
}

TEST_CASE("mesh plan: an interleaved launch order") {
  const Topology topology = machines::hgx(2);
  std::vector<RankSite> ranks;
  for (int i = 0; i < 8; ++i)
    for (const std::string host : {"b", "a"}) ranks.push_back({host, gpu(host, 7 - i)});
  const MeshPlan plan = plan_mesh(topology, ranks);
  CHECK(plan.replicate == 2);
  CHECK(plan.shard == 8);
  // Rank 0 runs on b, so b's row comes first; within a row the GPUs ascend.
  CHECK(plan.order == std::vector<int>{14, 12, 10, 8, 6, 4, 2, 0, 15, 13, 11, 9, 7, 5, 3, 1});
  for (std::size_t column = 0; column < 8; ++column)
    CHECK(ranks[static_cast<std::size_t>(plan.order[column])].gpu.back() ==
          ranks[static_cast<std::size_t>(plan.order[column + 8])].gpu.back());
  CHECK(plan.findings.empty());
}

TEST_CASE("mesh plan: an island that spans hosts is wider than a host") {
  Topology rack;
  for (const std::string host : {"a", "b", "c", "d"}) {
    machines::add_host(rack, host, 4, IslandState::known);
    for (int i = 0; i < 4; ++i)
      machines::link(rack, gpu(host, i), host < "c" ? "rack 0" : "rack 1", 18, 50);
  }
  const MeshPlan plan = plan_mesh(rack, fill_hosts(rack, 0));
  CHECK(plan.replicate == 2);
  CHECK(plan.shard == 8);
  CHECK(plan.why == "shard over 8 GPUs of an NVLink island, replicate over 2 NVLink islands");
}

TEST_CASE("mesh plan: a host of bridged pairs is wider than its islands") {
  Topology topology;
  for (const std::string host : {"a", "b"}) {
    machines::add_host(topology, host, 4, IslandState::known);
    machines::join_all(topology, host, {0, 1});
    machines::join_all(topology, host, {2, 3});
  }
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.replicate == 2);
  CHECK(plan.shard == 4);
  CHECK(plan.why == "shard over 4 GPUs of a host, replicate over 2 hosts");
  REQUIRE(plan.findings.size() == 2);
  CHECK(plan.findings[0] ==
        "shard group 0 crosses islands: it joins NVLink island a/gpu0-1 (2 ranks), NVLink island "
        "a/gpu2-3 (2 ranks), over the PCIe and socket links of the host, not at the 100 GB/s a GPU "
        "of an island");
}

TEST_CASE("mesh plan: 8 + 7 + 1, where a GPU lost its links") {
  Topology topology = machines::hgx(1);
  machines::add_host(topology, "b", 8, IslandState::known);
  machines::join_all(topology, "b", {0, 1, 2, 4, 5, 6, 7});
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.replicate == 2);
  CHECK(plan.shard == 8);
  CHECK(plan.order == counting(16));  // columns stay on their rails
  REQUIRE(plan.findings.size() == 1);
  CHECK(mentions(plan.findings,
                 "shard group 1 crosses islands: it joins NVLink island b/gpu0-2, "
                 "4-7 (7 ranks), host b (1 rank)"));
}

TEST_CASE("mesh plan: unequal islands take their common divisor") {
  Topology topology;
  machines::add_switched(topology, "a", 8);
  machines::add_switched(topology, "b", 6);
  MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.replicate == 7);
  CHECK(plan.shard == 2);
  CHECK(plan.why ==
        "shard over 2 GPUs, the largest number that divides the ranks of every NVLink island (1 of "
        "8, 1 of 6); replicate over 7 groups");
  CHECK(mentions(plan.findings, "unequal numbers of ranks (1 of 8, 1 of 6)"));
  CHECK(mentions(plan.findings, "with 6 ranks on each it would be 6"));

  Topology three;
  machines::add_switched(three, "a", 8);
  machines::add_switched(three, "b", 7);
  machines::add_switched(three, "c", 1);
  plan = plan_mesh(three, fill_hosts(three, 0));
  CHECK(plan.shard == 1);
  CHECK(plan.replicate == 16);
  CHECK(mentions(plan.findings, "common divisor 1"));
}

TEST_CASE("mesh plan: rows of a divided host break where its islands do") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::join_all(topology, "a", {0, 2});
  machines::join_all(topology, "a", {1, 3});
  machines::add_host(topology, "b", 2, IslandState::known);
  machines::join_all(topology, "b", {0, 1});
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.shard == 2);
  CHECK(plan.order == std::vector<int>{0, 2, 1, 3, 4, 5});
  CHECK_FALSE(mentions(plan.findings, "crosses"));
}

TEST_CASE("mesh plan: CPU hosts") {
  const Topology topology = machines::cpus(2);
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 8));
  CHECK(plan.replicate == 2);
  CHECK(plan.shard == 4);
  CHECK(plan.why == "shard over 4 ranks of a host, replicate over 2 hosts");

  const MeshPlan one_each = plan_mesh(topology, fill_hosts(topology, 2));
  CHECK(one_each.shard == 1);
  CHECK(one_each.why == "nothing to shard over: each host holds 1 rank; replicate over 2 hosts");
  CHECK(plan_mesh(topology, fill_hosts(topology, 1)).why ==
        "one rank: nothing to shard or replicate over");
  // Nothing is known of the hosts, but that there are two.
  CHECK(plan_mesh(Topology{}, {{"x", ""}, {"y", ""}, {"x", ""}, {"y", ""}}).order ==
        std::vector<int>{0, 2, 1, 3});
}

TEST_CASE("mesh plan: emulated islands follow the ranks' order") {
  const Topology topology = machines::cpus(1);
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 8), {.emulated_islands = 4});
  CHECK(plan.replicate == 4);
  CHECK(plan.shard == 2);
  CHECK(plan.order == counting(8));
  CHECK(plan.why == "shard over 2 ranks of an emulated island, replicate over 4 emulated islands");
  CHECK(plan.findings.empty());
  CHECK(code_of([&] { plan_mesh(topology, fill_hosts(topology, 8), {.emulated_islands = 3}); }) ==
        ErrorCode::invalid_argument);
  CHECK(mentions(
      check_mesh(topology, fill_hosts(topology, 8), by_hand(2, 4), {.emulated_islands = 4}),
      "joins emulated island 0 (2 ranks), emulated island 1 (2 ranks)"));
}

TEST_CASE("mesh plan: unknown links and shared GPUs are findings") {
  Topology topology;
  machines::add_host(topology, "a", 4);
  const MeshPlan plan = plan_mesh(topology, fill_hosts(topology, 0));
  CHECK(plan.shard == 4);
  CHECK(plan.why == "shard over all 4 GPUs of a host, which holds every rank");
  CHECK(mentions(plan.findings, "no source says how the GPUs of a are joined"));
  const MeshPlan shared = plan_mesh(topology, {{"a", "a/gpu0"}, {"a", "a/gpu0"}});
  CHECK(mentions(shared.findings, "ranks 0-1 share GPU a/gpu0"));
}

TEST_CASE("mesh check: a mesh that crosses islands says what it joins") {
  Topology topology = machines::hgx(2);
  const auto ranks = fill_hosts(topology, 0);
  CHECK(check_mesh(topology, ranks, by_hand(2, 8)).empty());
  CHECK(check_mesh(topology, ranks, by_hand(4, 4)).empty());
  CHECK(check_mesh(topology, ranks, by_hand(16, 1)).empty());
  auto findings = check_mesh(topology, ranks, by_hand(1, 16));
  REQUIRE(findings.size() == 1);
  CHECK(findings[0] ==
        "shard group 0 crosses islands: it joins NVLink island a/gpu0-7 (8 ranks), NVLink island "
        "b/gpu0-7 (8 ranks), over the network, not at the 450 GB/s a GPU of an island");
  machines::add_nic(topology, "a", 400);
  machines::add_nic(topology, "b", 200);
  findings = check_mesh(topology, ranks, by_hand(1, 16));
  CHECK(mentions(findings, "over the network at 25 GB/s a host, not at the 450 GB/s a GPU"));
}

TEST_CASE("mesh check: many rows are summed up") {
  const Topology topology = machines::cpus(2);
  MeshPlan plan = by_hand(20, 2);
  for (int row = 0; row < 20; ++row) {
    plan.order[static_cast<std::size_t>(2 * row)] = row;
    plan.order[static_cast<std::size_t>(2 * row + 1)] = 20 + row;
  }
  const auto findings = check_mesh(topology, fill_hosts(topology, 40), plan);
  REQUIRE(findings.size() == 9);
  CHECK(findings.back() == "12 shard groups more cross islands too");
}

TEST_CASE("mesh check: what is no mesh is refused") {
  const Topology topology = machines::cpus(1);
  const auto ranks = fill_hosts(topology, 4);
  for (const auto& [replicate, shard] :
       std::vector<std::pair<int, int>>{{2, 3}, {0, 4}, {-1, -4}}) {
    MeshPlan plan;
    plan.replicate = replicate;
    plan.shard = shard;
    CHECK(code_of([&] { check_mesh(topology, ranks, plan); }) == ErrorCode::invalid_argument);
  }
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{}, {0, 1, 2}, {0, 1, 2, 2}, {0, 1, 2, 4}, {0, 1, 2, -1}}) {
    MeshPlan plan = by_hand(2, 2);
    plan.order = order;
    CHECK(code_of([&] { check_mesh(topology, ranks, plan); }) == ErrorCode::invalid_argument);
  }
  CHECK(code_of([&] { plan_mesh(topology, {}); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { plan_mesh(topology, {{"a", "a/gpu9"}}); }) == ErrorCode::invalid_argument);
}

TEST_CASE("ranks on hosts: as a launcher fills them") {
  Topology topology = machines::hgx(2);
  machines::add_host(topology, "login");
  const auto ranks = fill_hosts(topology, 10);
  REQUIRE(ranks.size() == 10);
  CHECK(ranks[7].gpu == "a/gpu7");
  CHECK(ranks[9].gpu == "b/gpu1");
  CHECK(fill_hosts(topology, 0).size() == 16);
  CHECK(code_of([&] { fill_hosts(topology, 17); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { fill_hosts(machines::cpus(1), 0); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { fill_hosts(Topology{}, 2); }) == ErrorCode::invalid_argument);

  const auto uneven = fill_hosts(machines::cpus(3), 8);
  REQUIRE(uneven.size() == 8);
  CHECK(std::ranges::count(uneven, "a", &RankSite::host) == 2);
  CHECK(std::ranges::count(uneven, "c", &RankSite::host) == 3);

  // More ranks than GPUs: the others compute on the host.
  const auto mixed = assign_gpus(topology, std::vector<std::string>(9, "b"));
  CHECK(mixed[7].gpu == "b/gpu7");
  CHECK(mixed[8].gpu.empty());
}
