// Tests of meshes over islands of unequal size. The expected times follow the model in
// topology/mesh/step_model.cpp and were computed by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "unit/topology/mesh.hpp"

using atoll::IslandState;
using machines::gpu;
using namespace meshes;

namespace {

// Returns two hosts with 8 GPUs each, where each GPU has 450 GB/s to a switch. GPU 3 of host b lost
// its links, so the island on host b has 7 GPUs.
Topology with_a_lost_gpu() {
  Topology topology = machines::hgx(1);
  machines::add_host(topology, "b", 8, IslandState::known);
  for (const int i : {0, 1, 2, 4, 5, 6, 7})
    machines::link(topology, gpu("b", i), "b/nvswitch0", 18);
  return topology;
}

// Returns islands of the given sizes, one on each of the hosts a, b, c, and so on. Each GPU has
// `gbyte_s` GB/s of network bandwidth.
Topology islands(const std::vector<int>& sizes, double gbyte_s) {
  Topology topology;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string host(1, static_cast<char>('a' + i));
    machines::add_switched(topology, host, sizes[i]);
    machines::add_nic(topology, host, gbyte_s * 8 * sizes[i]);
  }
  return topology;
}

}  // namespace

TEST_CASE("mesh uneven: 8 + 7 + 1, where a GPU lost its links") {
  Topology topology = with_a_lost_gpu();
  for (const std::string host : {"a", "b"}) machines::add_nic(topology, host, 8 * 400);
  for (atoll::TopologyGpu& one : topology.gpus)
    one.facts = {{"pci.gt_s", "2.5"}, {"pci.gt_s_max", "32"}, {"pci.width", "16"}};
  const MeshPlan lost = plan(topology);
  // The mesh contains all ranks, and the GPUs of each column are on one rail.
  CHECK(shape(lost) == "2x8x1");
  CHECK(lost.order == counting(16));
  // The plan proposes to leave out the GPU without links and the GPU on the same rail of host a.
  // Both islands then have 7 GPUs.
  CHECK(lost.left_out == std::vector<int>{3, 11});

  // Expected times per GB of parameters. A step gathers twice and reduces once over the shard axis;
  // 80 % of NVLink (450 GB/s) and 88.5 % of a rail (50 GB/s) are usable.
  // - 1x15, all ranks, 7 rails: 3 * 14/15 / min(0.8 * 450, 0.885 * 7 * 50) = 9.04 ms.
  // - 2x7, one rank left out: 3 * 6/7 / 360, and an all_reduce of 1/7 over a rail:
  //   2 * 1/2 / 7 / 44.25; together 10.4 ms.
  const MeshPlan good = plan(islands({8, 7}, 50));
  CHECK(shape(good) == "1x15x1");
  CHECK(good.order == counting(15));
  CHECK(good.left_out.empty());
  const Finding uneven = find(good.findings, "mesh_uneven");
  CHECK(contains(uneven.consequence,
                 "9.04 ms as 1x15, where a shard group crosses islands; 10.4 "
                 "ms as 2x7 without a/gpu7"));
  CHECK(uneven.fix ==
        "give every island or host the same number of ranks, and repair lost GPUs and links");
  CHECK(uneven.subjects.size() == 7);
  CHECK(uneven.subjects.front() == "b/gpu0");
}

TEST_CASE("mesh uneven: over a slow network smaller shards win, and a GPU is left out") {
  const MeshPlan slow = plan(islands({8, 7}, 1.5));
  CHECK(shape(slow) == "1x15x1");
  CHECK(slow.left_out == std::vector<int>{7});
  CHECK(
      contains(find(slow.findings, "mesh_uneven").fix, "leave out a/gpu7 (1 of 15 ranks, 6.67 %"));
}

TEST_CASE("mesh uneven: a common divisor of at least half an island stays inside") {
  const MeshPlan four = plan(islands({8, 8, 8, 4}, 50));
  CHECK(shape(four) == "7x4x1");
  CHECK(four.order == counting(28));
  CHECK(four.left_out.empty());
  CHECK(four.why ==
        "shard over 4 GPUs, the largest number that divides the ranks of every NVLink island (3 of "
        "8, 1 of 4); replicate over 7 groups");
  // The expected time is 3 * 3/4 / 360 + 2 * 6/7 / 4 / B, where B is the bandwidth of a column. A
  // column has 7 GPUs on four hosts but only 1 GPU on host d, the slowest host, so B = 0.85 * 50.
  CHECK(contains(find(four.findings, "mesh_uneven").consequence,
                 "16.3 ms as 7x4, inside the islands"));
  CHECK(find(four.findings, "mesh_crosses_islands").id.empty());
}

TEST_CASE("mesh uneven: never without more than a quarter of the ranks; a rank beyond the GPUs") {
  const MeshPlan thirds = plan(islands({8, 4}, 0.1));
  CHECK(shape(thirds) == "3x4x1");
  CHECK(thirds.left_out.empty());
  CHECK_FALSE(contains(find(thirds.findings, "mesh_uneven").consequence, "without"));
  const Topology topology = machines::hgx(1);
  const MeshPlan nine =
      plan_mesh(topology, assign_gpus(topology, std::vector<std::string>(9, "a")));
  CHECK(shape(nine) == "1x9x1");
  CHECK(nine.left_out == std::vector<int>{8});
  CHECK(find(nine.findings, "mesh_uneven").subjects == std::vector<std::string>{"rank 8"});
}

TEST_CASE("mesh uneven: fewer ranks on the last host, whose ranks have no GPU to name") {
  const Topology cpus = machines::cpus(3);
  std::vector<RankSite> ranks;
  for (const auto& [host, count] :
       std::vector<std::pair<std::string, int>>{{"a", 4}, {"b", 4}, {"c", 3}})
    ranks.insert(ranks.end(), static_cast<std::size_t>(count), {host, ""});
  const MeshPlan eleven = plan_mesh(cpus, ranks);
  CHECK(shape(eleven) == "1x11x1");
  CHECK(contains(find(eleven.findings, "mesh_uneven").evidence, "(2 of 4, 1 of 3)"));
  CHECK(find(eleven.findings, "mesh_uneven").subjects ==
        std::vector<std::string>{"rank 8", "rank 9", "rank 10"});
}

TEST_CASE("mesh uneven: with a model, only what holds it") {
  const Topology topology = islands({8, 6}, 50);
  // The model needs 104 GiB, and a GPU provides 64 GiB, so two GPUs hold the model. Two divides the
  // sizes of both islands.
  const MeshPlan two = plan(topology, {.params = 7e9, .gpu_memory_bytes = 80 * gib});
  expect_plan(two, "7x2x1",
              "7e9 parameters x 16 bytes = 104 GiB, at 64 GiB a GPU (80 GiB less 20 %): "
              "2 GPUs needed; shard over 2 GPUs");
  // The model needs six GPUs. The smallest divisor of the 14 ranks that is large enough is 7, and
  // groups of 7 cross islands. A mesh that leaves out two GPUs would also hold the model.
  const MeshPlan six = plan(topology, {.params = 6 * 4 * gib, .gpu_memory_bytes = 80 * gib});
  CHECK(shape(six) == "1x14x1");
  CHECK(
      contains(find(six.findings, "mesh_uneven").consequence, "as 2x6 without a/gpu6 and a/gpu7"));
  CHECK(find(six.findings, "mesh_crosses_islands").severity == atoll::Severity::info);
  // The message gives times for this model, with 2 bytes for each of 6 * 4 Gi parameters, instead
  // of times per GB. The model's times are 51.5 times as long.
  CHECK_FALSE(contains(find(six.findings, "mesh_uneven").consequence, "for each GB"));
  // Only all 14 GPUs together hold this model.
  const MeshPlan all = plan(topology, {.params = 13 * 4 * gib, .gpu_memory_bytes = 80 * gib});
  CHECK(shape(all) == "1x14x1");
  CHECK(all.left_out.empty());
}

TEST_CASE("mesh uneven: tensor ranks divide each island") {
  const MeshPlan tensor = plan(islands({8, 6}, 1), {.tensor = 2});
  CHECK(shape(tensor) == "1x7x2");
  CHECK(tensor.order == counting(14));
  CHECK(tensor.left_out == std::vector<int>{6, 7});
  CHECK(contains(find(tensor.findings, "mesh_uneven").consequence, "as 1x7x2, where"));
  CHECK(contains(find(tensor.findings, "mesh_uneven").consequence, "as 2x3x2 without a/gpu6 and"));
  // Both shard groups of the row cross the same islands, so a single finding reports both groups.
  CHECK(std::ranges::count(tensor.findings, "mesh_crosses_islands", &Finding::id) == 1);
}

TEST_CASE("mesh uneven: whatever the machine, a mesh holds every rank once") {
  std::mt19937 random(3);
  const auto any = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    Topology topology;
    for (int host = any(1, 4); host > 0; --host) {
      const std::string name = "h" + std::to_string(host);
      const int count = any(0, 6);
      machines::add_host(topology, name, count, static_cast<IslandState>(any(0, 2)));
      for (int links = any(0, 2) * count; links > 0; --links) {
        const std::string other = any(0, 3) == 0 ? "rack:0" : name + "/nvswitch0";
        machines::link(topology, gpu(name, any(0, count - 1)),
                       any(0, 1) == 0 ? other : gpu(name, any(0, count - 1)));
      }
      if (any(0, 1) == 0) machines::add_nic(topology, name, 100);
    }
    std::vector<std::string> hosts;
    for (int rank = any(1, 20); rank > 0; --rank) hosts.push_back("h" + std::to_string(any(1, 4)));
    const auto ranks = assign_gpus(topology, hosts);
    MeshPlanOptions options;
    if (any(0, 2) == 0) options.params = any(1, 100) * gib;
    options.gpu_memory_bytes = 80 * gib;
    MeshPlan mesh;
    const std::string refused = refusal([&] { mesh = plan_mesh(topology, ranks, options); });
    if (!refused.empty()) {
      CHECK(options.params.has_value());
      CHECK(static_cast<double>(ranks.size()) * 4 * gib < *options.params);
      continue;
    }
    // check_mesh() throws unless the mesh contains every rank.
    CHECK(check_mesh(topology, ranks, mesh, options).size() <= mesh.findings.size());
    CHECK(mesh.left_out.size() * 4 <= ranks.size());
    CHECK_FALSE(mesh.why.empty());
    if (options.params) CHECK(mesh.shard * 4 * gib >= *options.params);
  }
}
