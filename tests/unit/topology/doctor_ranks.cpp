// Tests of the topology doctor's checks of ranks, of their mesh, and of hosts that should be alike.
#include "unit/topology/doctor.hpp"

namespace fact = atoll::fact;
using atoll::diagnose;
using atoll::MeshPlan;
using atoll::RankSite;
using namespace machines;

namespace {

std::vector<RankSite> one_a_gpu(const Topology& topology) {
  std::vector<RankSite> ranks;
  for (const auto& one : topology.gpus)
    ranks.push_back(
        {.host = one.host, .gpu = one.id, .partition = "", .cpus = {}, .numa = one.numa});
  return ranks;
}

MeshPlan mesh(int replicate, int shard, int tensor = 1) {
  MeshPlan plan;
  plan.replicate = replicate;
  plan.shard = shard;
  plan.tensor = tensor;
  for (int rank = 0; rank < replicate * shard * tensor; ++rank) plan.order.push_back(rank);
  return plan;
}

}  // namespace

TEST_CASE("ranks_share_gpu: whole GPUs and partitions") {
  const Topology topology = cluster(1);
  auto ranks = one_a_gpu(topology);
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_gpu") == "ok");
  ranks[2].gpu = ranks[3].gpu = gpu("a", 0);
  expect_finding(diagnose(topology, ranks), "ranks_share_gpu", Severity::error,
                 {"rank 0", "rank 2", "rank 3", "a/gpu0"}, {"ranks 0, 2-3 use a/gpu0"});
  ranks[0].partition = "MIG-1", ranks[2].partition = "MIG-2", ranks[3].partition = "MIG-3";
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_gpu") == "ok");
  ranks[3].partition = "MIG-1";
  CHECK(the_finding(diagnose(topology, ranks), "ranks_share_gpu").severity == Severity::error);
  for (RankSite& rank : ranks) rank.gpu.clear();
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_gpu") == "no rank has a GPU");
}

TEST_CASE("rank_off_socket: bound to another socket than the GPU's") {
  const Topology topology = cluster(1);
  auto ranks = one_a_gpu(topology);
  CHECK(state_of(diagnose(topology, ranks), "rank_off_socket") == "ok");
  ranks[3].numa = 0;
  expect_finding(diagnose(topology, ranks), "rank_off_socket", Severity::warning,
                 {"rank 3", "a/gpu3"},
                 {"the rank runs on NUMA node 0 of socket 0, its GPU is on socket 1"});
  for (RankSite& rank : ranks) rank.numa = -1;
  CHECK(state_of(diagnose(topology, ranks), "rank_off_socket") ==
        "no rank is bound to one NUMA node");
}

TEST_CASE("rank_off_socket: several NUMA nodes a socket") {
  Topology topology = cluster(1);
  topology.hosts[0].numa_nodes = 8;
  for (auto& one : topology.gpus) one.package = -1;
  topology.gpus[0].numa = 1;
  auto ranks = one_a_gpu(topology);
  ranks.resize(1);
  ranks[0].numa = 3;
  CHECK(state_of(diagnose(topology, ranks), "rank_off_socket") == "ok");
  ranks[0].numa = 4;
  CHECK(the_finding(diagnose(topology, ranks), "rank_off_socket").evidence ==
        "the rank runs on NUMA node 4 of socket 1, its GPU is on socket 0");
}

TEST_CASE("ranks_share_core: bound to the same core, or to sets that overlap") {
  const Topology topology = cluster(1);  // one host with 8 cores of 2 threads each
  auto ranks = one_a_gpu(topology);
  const auto cpus = [&](const std::vector<std::vector<int>>& sets) {
    for (std::size_t i = 0; i < sets.size(); ++i) ranks[i].cpus = sets[i];
    return diagnose(topology, ranks);
  };
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_core") == "no rank reports its CPUs");
  CHECK(state_of(cpus({{0, 1}, {2, 3}, {4, 5}, {6, 7}}), "ranks_share_core") == "ok");
  expect_finding(cpus({{0, 1}, {0, 1}, {4, 5}, {6, 7}}), "ranks_share_core", Severity::warning,
                 {"rank 0", "rank 1"}, {"ranks 0-1 on a share 2 hardware threads"});
  expect_finding(cpus({{0, 1}, {2, 3}, {3, 4}, {4, 5}}), "ranks_share_core", std::nullopt, {},
                 {"ranks 1-3 on a share 4 hardware threads"});
}

TEST_CASE("ranks_share_core: a socket that is shared by design, and ranks that are not bound") {
  const Topology topology = cluster(1);
  auto ranks = one_a_gpu(topology);
  for (std::size_t i = 0; i < 4; ++i)
    ranks[i].cpus = i < 2 ? std::vector{0, 1, 2, 3, 8, 9, 10, 11} : std::vector{4, 5, 6, 7, 12, 13};
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_core") == "ok");
  for (RankSite& rank : ranks) {
    rank.cpus.clear();
    for (int cpu = 0; cpu < 16; ++cpu) rank.cpus.push_back(cpu);
  }
  CHECK(state_of(diagnose(topology, ranks), "ranks_share_core") == "ok");
}

TEST_CASE("shard_not_island: rows that cross, split or divide islands") {
  const Topology topology = cluster(2);
  const auto ranks = one_a_gpu(topology);
  CHECK(state_of(diagnose(topology, ranks), "shard_not_island") == "no mesh");
  MeshPlan plan = mesh(2, 4);
  CHECK(state_of(diagnose(topology, ranks, &plan), "shard_not_island") == "ok");
  // Each row of the mesh fills a whole island: 2 shard ranks times 2 tensor-parallel ranks.
  plan = mesh(2, 2, 2);
  CHECK(state_of(diagnose(topology, ranks, &plan), "shard_not_island") == "ok");

  plan = mesh(1, 8);
  expect_finding(
      diagnose(topology, ranks, &plan), "shard_not_island", Severity::info, {},
      {"groups that cross islands: 1 of 1 shard group", "50 instead of 450 GB/s per GPU"});

  plan = mesh(2, 4);
  plan.order = {0, 1, 4, 5, 2, 3, 6, 7};
  expect_finding(diagnose(topology, ranks, &plan), "shard_not_island", Severity::warning, {},
                 {"groups that cross islands: 2 of 2 shard groups"});

  plan = mesh(4, 2);
  expect_finding(diagnose(topology, ranks, &plan), "shard_not_island", Severity::info, {},
                 {"the shard axis of 2 ranks covers only a part of 2 islands"});

  const Topology plain = machines::cpus(2);
  const std::vector<RankSite> on_cpus{{"a", ""}, {"b", ""}};
  plan = mesh(1, 2);
  CHECK(state_of(diagnose(plain, on_cpus, &plan), "shard_not_island") ==
        "no rank is in a known island of several GPUs");
}

TEST_CASE("mesh: what the planner says is passed on, once") {
  const Topology topology = cluster(2);
  const auto ranks = one_a_gpu(topology);
  MeshPlan plan = mesh(1, 8);
  CHECK(state_of(diagnose(topology, ranks, &plan), "mesh") == "ok");
  plan.findings = {
      {.id = "mesh_crosses_islands", .severity = Severity::warning, .evidence = "group 0 crosses"},
      {.id = "ranks_share_gpu", .severity = Severity::error, .evidence = "as the planner puts it"}};
  auto crowded = ranks;
  crowded[1].gpu = crowded[0].gpu;
  const Diagnosis diagnosis = diagnose(topology, crowded, &plan);
  CHECK(the_finding(diagnosis, "ranks_share_gpu").evidence == "as the planner puts it");
  CHECK(found_in(diagnosis, "mesh_crosses_islands").size() == 1);
  CHECK(found_in(diagnosis, "shard_not_island").empty());
  CHECK(machines::check_of(diagnosis, "shard_not_island").status == CheckStatus::finding);
  CHECK(machines::check_of(diagnosis, "mesh").status == CheckStatus::finding);
  CHECK(diagnosis.findings[0].id == "ranks_share_gpu");
}

TEST_CASE("mesh: a plan that does not fit the ranks is looked at as far as it goes") {
  const Topology topology = cluster(1);
  MeshPlan plan = mesh(1, 4);
  plan.order = {0, -1, 99, 3};
  const auto ranks = one_a_gpu(topology);
  CHECK(machines::check_of(diagnose(topology, ranks, &plan), "shard_not_island").status ==
        CheckStatus::finding);
  plan = mesh(0, 0);
  CHECK(contains(state_of(diagnose(topology, ranks, &plan), "shard_not_island"), "no rank"));
}

TEST_CASE("hosts_differ: the odd ones out, for each feature") {
  CHECK(state_of(cluster(1), "hosts_differ") == "only one host");
  Topology topology = cluster(4);
  set_hosts(topology, fact::driver_version, "550.54.15");
  set_hosts(topology, fact::kernel_release, "6.1.0");
  CHECK(state_of(topology, "hosts_differ") == "ok");
  set(topology.hosts[2].facts, fact::driver_version, "535.104.05");
  set(topology.hosts[3].facts, fact::kernel_release, "5.15.0");
  for (std::size_t i = 0; i < 4; ++i) topology.gpus[i].model = "NVIDIA A100-SXM4-80GB";
  topology.gpus.pop_back();
  topology.nics.pop_back();
  for (std::size_t i = 4; i < 8; ++i) topology.nics[i].rate_gbit_s = 200;
  const auto findings = found_in(diagnose(topology), "hosts_differ");
  const std::pair<const char*, const char*> expected[] = {
      {"d", "hosts differ in GPUs: 3 on this host, but 4 on 3 other hosts"},
      {"a", "in models: NVIDIA A100-SXM4-80GB on this host, but NVIDIA H100 80GB HBM3 on 3 other"},
      {"d", "in RDMA ports: 3 on this host, but 4"},
      {"b", "in rates: 200 Gbit/s on this host, but 400 Gbit/s"},
      {"c", "in driver: 535.104.05 on this host, but 550.54.15"},
      {"d", "in kernel: 5.15.0 on this host, but 6.1.0"}};
  REQUIRE(findings.size() == std::size(expected));
  for (std::size_t i = 0; i < findings.size(); ++i) {
    CHECK(findings[i].subjects == Strings{expected[i].first});
    CHECK_MESSAGE(contains(findings[i].evidence, expected[i].second), findings[i].evidence);
  }
}
