// Tests of meshes for a model of a given size.
#include <doctest/doctest.h>

#include <cmath>

#include "unit/topology/mesh.hpp"

using atoll::IslandState;
using namespace meshes;

namespace {

// Returns options for GPUs with 80 GiB. 64 GiB are usable, so a GPU holds 4 Gi parameters of 16
// bytes each.
MeshPlanOptions model(double params) { return {.params = params, .gpu_memory_bytes = 80 * gib}; }

}  // namespace

TEST_CASE("mesh memory: an island that holds the model is enough") {
  const MeshPlan small = plan(machines::hgx(4), model(30e9));
  expect_plan(
      small, "4x8x1",
      "30e9 parameters x 16 bytes = 447 GiB, at 64 GiB a GPU (80 GiB less 20 %): an NVLink "
      "island of 8 holds 512 GiB; shard over 8 GPUs of an NVLink island, replicate over 4 NVLink "
      "islands");
  CHECK(small.findings.empty());
}

TEST_CASE("mesh memory: two of four islands") {
  const MeshPlan two = plan(machines::hgx(4), model(60e9));
  expect_plan(two, "2x16x1",
              "shard over 16 GPUs of 2 NVLink islands, replicate over 2 such groups");
  CHECK(two.order == counting(32));
  // No single island holds the model, so crossing islands is necessary and causes no warning.
  REQUIRE(two.findings.size() == 2);
  CHECK(two.findings[0].id == "mesh_crosses_islands");
  CHECK(two.findings[0].severity == atoll::Severity::info);
}

TEST_CASE("mesh memory: two of three islands would hold the model, so all three do") {
  expect_plan(plan(machines::hgx(3), model(60e9)), "1x24x1",
              "2 does not divide 3, so 3 NVLink islands (1536 GiB) are used");
  expect_plan(plan(machines::hgx(3), model(70e9)), "1x24x1",
              "3 NVLink islands (1536 GiB) are the fewest that hold the model");
}

TEST_CASE("mesh memory: a model that no candidate holds is refused with what is missing") {
  CHECK(refusal([] { plan(machines::hgx(1), model(70e9)); }) ==
        "the model does not fit: 70e9 parameters x 16 bytes = 1043 GiB; all 8 GPUs hold 512 GiB "
        "together, 64 GiB a GPU (80 GiB less 20 %); 531 GiB are missing: use at least 17 GPUs, or "
        "fewer bytes for each parameter (--state-bytes)");
  // Islands of unequal size and single GPUs cause the same kind of error message.
  Topology uneven = machines::hgx(1);
  machines::add_switched(uneven, "b", 7);
  CHECK(contains(refusal([&] { plan(uneven, model(70e9)); }), "all 15 GPUs hold 960 GiB"));
  Topology single;
  machines::add_host(single, "a", 1, IslandState::none);
  CHECK(contains(refusal([&] { plan(single, model(70e9)); }), "1 GPU holds 64 GiB"));
}

TEST_CASE("mesh memory: what fills the memory exactly fits") {
  CHECK(shape(plan(machines::hgx(4), model(32 * gib))) == "4x8x1");
  CHECK(shape(plan(machines::hgx(4), model(32 * gib + 1))) == "2x16x1");
  CHECK(shape(plan(machines::hgx(4), model(128 * gib))) == "1x32x1");
  CHECK(refusal([] { plan(machines::hgx(4), model(128 * gib + 16)); }) != "");
}

TEST_CASE("mesh memory: bytes of a parameter and reserve are the caller's") {
  MeshPlanOptions options = model(70e9);
  options.state_bytes = 7;
  expect_plan(plan(machines::hgx(3), options), "3x8x1", "70e9 parameters x 7 bytes = 456 GiB");
  options.state_bytes = 8;
  options.reserve = 0;
  expect_plan(plan(machines::hgx(3), options), "3x8x1",
              "at 80 GiB a GPU: an NVLink island of 8 holds 640 GiB");
  for (const double nonsense : std::vector<double>{0, -1, NAN, INFINITY}) {
    CHECK(refusal([&] { plan(machines::hgx(1), model(nonsense)); }) != "");
    CHECK(refusal([&] { plan(machines::hgx(1), {.params = 1e9, .gpu_memory_bytes = nonsense}); }) !=
          "");
    options.state_bytes = nonsense;
    CHECK(refusal([&] { plan(machines::hgx(1), options); }) != "");
  }
  options = model(1e9);
  options.reserve = 1;
  CHECK(refusal([&] { plan(machines::hgx(1), options); }) != "");
}

TEST_CASE("mesh memory: pairs, and k of them in a host") {
  const Topology topology = pair_hosts(2, 4);
  CHECK(shape(plan(topology, model(8 * gib))) == "8x2x1");
  CHECK(plan(topology, model(8 * gib)).findings.empty());
  expect_plan(plan(topology, model(16 * gib)), "4x4x1",
              "shard over 4 GPUs of 2 NVLink islands, replicate over 4 such groups");
  // The model needs three pairs of GPUs, but 3 does not divide the four pairs of a host, so a shard
  // group is a whole host.
  expect_plan(plan(topology, model(24 * gib)), "2x8x1",
              "2 NVLink islands hold 256 GiB; a host of 8 (512 GiB) is the smallest "
              "group that holds the model");
  CHECK(shape(plan(topology, model(64 * gib))) == "1x16x1");
}

TEST_CASE("mesh memory: a GPU without links may hold the model alone") {
  Topology boxes;
  for (const std::string host : {"a", "b"}) machines::add_host(boxes, host, 8, IslandState::none);
  expect_plan(plan(boxes, model(1e9)), "16x1x1",
              "a GPU holds 64 GiB; nothing to shard over; replicate over 16 GPUs");
  const MeshPlan two = plan(boxes, model(7e9));
  CHECK(shape(two) == "8x2x1");
  CHECK(
      contains(two.why,
               "2 GPUs (128 GiB) are the fewest that hold the model; shard over 2 GPUs, replicate "
               "over 8 such groups"));
  CHECK(shape(plan(boxes, model(7 * 4 * gib))) == "2x8x1");
  // A single GPU of a larger island is not considered as a shard group, even if it holds the model.
  CHECK(shape(plan(machines::hgx(2), model(1e9))) == "2x8x1");
}

TEST_CASE("mesh memory: the GPUs' own memory, the least of them") {
  Topology topology = machines::hgx(2);
  CHECK(refusal([&] { plan(topology, {.params = 1e9}); }) ==
        "no source provides the memory of a/gpu0: set the memory size with --gpu-memory");
  for (atoll::TopologyGpu& one : topology.gpus)
    one.facts["memory_bytes"] = std::to_string(std::int64_t{80} << 30);
  CHECK(shape(plan(topology, {.params = 30e9})) == "2x8x1");
  topology.gpus[3].facts["memory_bytes"] = std::to_string(std::int64_t{40} << 30);
  CHECK(shape(plan(topology, {.params = 30e9})) == "1x16x1");
  // The GPU memory in the options takes precedence over the GPU memory in the topology.
  CHECK(shape(plan(topology, model(30e9))) == "2x8x1");
  // Two ranks on one GPU share its memory, a partition has less memory than its GPU, and a rank on
  // the CPU has no GPU memory.
  auto ranks = fill_hosts(machines::hgx(2), 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = ranks[i / 2 * 2];
  expect_plan(plan_mesh(topology, ranks, {.params = 30e9}), "1x16x1",
              "at 32 GiB a GPU (40 GiB less 20 %)");
  ranks[0].partition = "MIG-1";
  CHECK(contains(refusal([&] { plan_mesh(topology, ranks, {.params = 1e9}); }),
                 "rank 0 uses a partition of a/gpu0, whose memory no source provides"));
  ranks[0] = {"a", ""};
  CHECK(contains(refusal([&] { plan_mesh(topology, ranks, {.params = 1e9}); }), "--gpu-memory"));
}

TEST_CASE("mesh memory: tensor ranks hold their part of the model") {
  MeshPlanOptions options = model(30e9);
  options.tensor = 2;
  CHECK(shape(plan(machines::hgx(4), options)) == "4x4x2");
  options.params = 60e9;
  const MeshPlan two = plan(machines::hgx(4), options);
  CHECK(shape(two) == "2x8x2");
  CHECK(two.order == counting(32));
  options.tensor = 8;
  CHECK(shape(plan(machines::hgx(4), options)) == "2x2x8");
}

TEST_CASE("mesh memory: ranks on CPUs take what is said of a GPU") {
  const Topology cpus = machines::cpus(4);
  const auto ranks = fill_hosts(cpus, 8);
  expect_plan(plan_mesh(cpus, ranks, model(12 * gib)), "2x4x1",
              "a host of 2 holds 128 GiB; 2 hosts (256 GiB) are the fewest that hold the model");
  CHECK(contains(refusal([&] { plan_mesh(cpus, ranks, {.params = 1e9}); }), "--gpu-memory"));
}
