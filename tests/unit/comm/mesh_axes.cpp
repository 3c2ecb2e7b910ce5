// Meshes of named axes: their groups, sub-meshes, errors, and collectives over each axis.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "thread_ranks.hpp"
#include "unit/rank_reports.hpp"

using atoll::AxisSpec;
using atoll::Mesh;
using atoll::MeshShape;
using atoll::World;

namespace {

using Ranks = std::vector<int>;
using Texts = std::vector<std::string>;

// Returns the sum over `axis` of a value that differs on every rank: the rank itself.
float sum_over(const atoll::Axis& axis) {
  auto comm = atoll::Communicator::open(axis);
  auto stream = comm.device().stream();
  const std::vector<float> mine(100, static_cast<float>(axis.world->rank()));
  std::vector<float> sum(100, -1);
  comm.all_reduce(mine, sum, atoll::ReduceOp::sum, stream).synchronize();
  CHECK(sum == std::vector<float>(100, sum.front()));
  return sum.front();
}

// The ranks 7, 6, ..., 0 in mesh order as 2 x 2 x 2: a rank and its peer on an axis differ in one
// bit, which is 4 on the outermost axis.
atoll::MeshPlan reversed_plan() {
  atoll::MeshPlan plan;
  plan.replicate = plan.shard = plan.tensor = 2;
  plan.order = {7, 6, 5, 4, 3, 2, 1, 0};
  plan.why = "the ranks are reversed";
  return plan;
}

}  // namespace

TEST_CASE("mesh axes: two numbers and lists of axes select their overloads") {
  World world = World::single();
  CHECK(Mesh::make(world, {1, 1}).to_string() == "1x1");
  CHECK(Mesh::make(world, {.replicate = 1, .shard = 1}).shape() == MeshShape{1, 1});
  const Mesh one = Mesh::make(world, {{"data", 1}});
  CHECK(one.to_string() == "data 1");
  CHECK(one.shape() == MeshShape{1, 1});
  Mesh two = Mesh::make(world, {{"replicate", 1}, {"shard", 1}});
  CHECK(two.to_string() == "1x1");
  CHECK(two.axis("shard").ranks == Ranks{0});
  const Mesh moved = std::move(two);
  CHECK(two.reason().empty());  // NOLINT(bugprone-use-after-move)
  CHECK(moved.shape() == MeshShape{1, 1});
  const Mesh three = Mesh::make(world, {{"replicate", 1}, {"shard", 1}, {"tensor", 1}},
                                atoll::Topology::discover(world));
  CHECK(three.reason() == "the user requested replicate 1 x shard 1 x tensor 1");
  CHECK(three.axis("tensor").rate.is_known());
}

TEST_CASE("mesh axes: wrong axes are errors that name the axis") {
  World world = World::single();
  const std::pair<std::vector<AxisSpec>, const char*> wrong[] = {
      {{}, "a mesh needs at least one axis"},
      {{{"shard", 1}, {"", 1}}, "an axis of a mesh needs a name"},
      {{{"world", 1}}, "a mesh cannot name an axis \"world\""},
      {{{"shard", 1}, {"tensor", 1}, {"shard", 1}}, "a mesh cannot have two axes \"shard\""},
      {{{"shard", 1}, {"tensor", 0}}, "axis tensor of a mesh cannot have 0 ranks"},
      {{{"shard", 2}, {"tensor", 3}}, "shard 2 x tensor 3 does not fit a world of 1 ranks"}};
  for (const auto& [axes, text] : wrong) {
    CHECK_THROWS_WITH(Mesh::make(world, axes), doctest::Contains(text));
  }
  const Mesh mesh = Mesh::make(world, {{"shard", 1}, {"tensor", 1}});
  CHECK_THROWS_WITH(mesh.axis("pipe"),
                    doctest::Contains("no axis \"pipe\": its axes are shard, tensor and world"));
  const std::pair<std::vector<std::string>, const char*> wrong_subs[] = {
      {{"shard", "world"}, "cannot have an axis \"world\": its axes are shard, tensor"},
      {{"tensor", "tensor"}, "cannot have two axes \"tensor\""},
      {{}, "a sub-mesh of shard 1 x tensor 1 needs at least one axis"}};
  for (const auto& [names, text] : wrong_subs) {
    CHECK_THROWS_WITH(mesh.sub(names), doctest::Contains(text));
  }
  CHECK_THROWS_WITH(mesh.sub({"tensor"}).axis("shard"),
                    doctest::Contains("no axis \"shard\": its axes are tensor and world"));
  atoll::MeshPlan plan;
  plan.order = {1};
  CHECK_THROWS_WITH(Mesh::from_plan(world, plan),
                    doctest::Contains("must name each of the 1 ranks once"));
}

TEST_CASE("mesh axes: ranks with other axes get one error on every rank") {
  const auto differing = atoll_test::on_threads(4, [](World& world) {
    const int tensor = world.rank() == 2 ? 4 : 2;
    return Mesh::make(world, {{"shard", 4 / tensor}, {"tensor", tensor}}).to_string();
  });
  CHECK(differing ==
        Texts(4,
              "mismatch: Mesh::make: ranks disagree about the axes of the mesh: shard 2 x "
              "tensor 2 on rank 0, shard 1 x tensor 4 on rank 2; all ranks must pass the same"));
  const auto wrong = atoll_test::on_threads(2, [](World& world) {
    return Mesh::make(world, {{"shard", 1 + world.rank()}}).to_string();
  });
  const std::string text = "a mesh of shard 1 does not fit a world of 2 ranks";
  CHECK(wrong == Texts{"invalid argument: " + text, "invalid argument: rank 0: " + text});
}

TEST_CASE("mesh axes: groups and sub-meshes of a row-major mesh of 2 x 3 x 2 ranks") {
  atoll_test::run_thread_ranks(12, [](World& world) {
    const Mesh mesh = Mesh::make(world, {{"pipe", 2}, {"shard", 3}, {"tensor", 2}});
    const int rank = world.rank(), p = rank / 6, s = rank / 2 % 3, t = rank % 2;
    CHECK(mesh.shape() == MeshShape{1, 3});
    CHECK(mesh.axis("pipe").ranks == Ranks{rank % 6, rank % 6 + 6});
    CHECK(mesh.axis("pipe").index == p);
    CHECK(mesh.axis("shard").ranks == Ranks{6 * p + t, 6 * p + 2 + t, 6 * p + 4 + t});
    CHECK(mesh.axis("shard").index == s);
    CHECK(mesh.axis("tensor").ranks == Ranks{rank - t, rank - t + 1});
    CHECK(mesh.axis("tensor").index == t);
    Ranks all(12);
    std::iota(all.begin(), all.end(), 0);
    CHECK(mesh.axis("world").ranks == all);
    CHECK(mesh.axis("world").block == 2);
    CHECK_FALSE(mesh.axis("tensor").rate.is_known());

    const Mesh turned = mesh.sub({"tensor", "pipe"});  // not in the order of the mesh
    CHECK(turned.to_string() == "tensor 2 x pipe 2");
    CHECK(turned.axes() == std::vector<AxisSpec>{{"tensor", 2}, {"pipe", 2}});
    CHECK(turned.axis("pipe").ranks == mesh.axis("pipe").ranks);
    CHECK(turned.axis("world").ranks == Ranks{2 * s, 2 * s + 6, 2 * s + 1, 2 * s + 7});
    CHECK(turned.axis("world").index == 2 * t + p);
    CHECK(&turned.world() == &world);
    CHECK(turned.sub({"pipe"}).axis("world").ranks == mesh.axis("pipe").ranks);
  });
}

TEST_CASE("mesh axes: a plan with a tensor axis runs; each axis sums over its own ranks") {
  const auto results = atoll_test::on_threads(8, [](World& world) {
    const Mesh mesh = Mesh::from_plan(world, reversed_plan());
    CHECK(mesh.to_string() == "replicate 2 x shard 2 x tensor 2");
    CHECK(mesh.reason() == "the ranks are reversed");
    const int rank = world.rank();
    const auto with_peer = [&](int bit) { return static_cast<float>(rank + (rank ^ bit)); };
    CHECK(sum_over(mesh.axis("replicate")) == with_peer(4));
    CHECK(sum_over(mesh.axis("shard")) == with_peer(2));
    CHECK(sum_over(mesh.axis("tensor")) == with_peer(1));
    CHECK(sum_over(mesh.axis("world")) == 28.0f);

    const Mesh half = mesh.sub({"tensor", "shard"});  // the four ranks with this rank's bit 4
    const int high = rank & 4;
    CHECK(half.axis("world").ranks == Ranks{high + 3, high + 1, high + 2, high});
    CHECK(sum_over(half.axis("world")) == static_cast<float>(4 * high + 6));
    CHECK(sum_over(half.axis("shard")) == with_peer(2));
    return std::string("done");
  });
  CHECK(results == Texts(8, "done"));
}

TEST_CASE("mesh axes: only the ranks of a sub-mesh take part in its collectives") {
  const auto results = atoll_test::on_threads(4, [](World& world) {
    const Mesh mesh = Mesh::make(world, {{"pipe", 2}, {"shard", 2}});
    const Mesh stage = mesh.sub({"shard"});
    // Only the ranks of a stage take part, so the second stage may open more communicators.
    const float sum = sum_over(stage.axis("world"));
    if (mesh.axis("pipe").index == 1) CHECK(sum_over(stage.axis("world")) == sum);
    return std::to_string(static_cast<int>(sum));
  });
  CHECK(results == Texts{"1", "1", "5", "5"});
}

TEST_CASE("mesh axes: the planner's tensor axis holds neighbouring ranks of one island") {
  const auto body = [](World& world) {
    const auto topology = atoll::Topology::discover(world);
    const Mesh mesh = Mesh::plan(topology, world, {.tensor = 2});
    CHECK(mesh.to_string() == "replicate 2 x shard 2 x tensor 2");
    CHECK(mesh.reason().starts_with("shard over 2 x 2 "));
    const int rank = world.rank();
    CHECK(mesh.axis("tensor").ranks == Ranks{rank / 2 * 2, rank / 2 * 2 + 1});
    CHECK(mesh.axis("shard").ranks == Ranks{rank / 4 * 4 + rank % 2, rank / 4 * 4 + rank % 2 + 2});
    CHECK(mesh.axis("replicate").ranks == Ranks{rank % 4, rank % 4 + 4});
    for (const char* name : {"replicate", "shard", "tensor", "world"}) {
      CAPTURE(name);
      CHECK(mesh.axis(name).rate.is_known());
    }
    const Mesh half = mesh.sub({"replicate", "shard"});
    CHECK(half.to_string() == "2x2");
    CHECK(half.axis("world").rate.is_known());
    CHECK(half.axis("replicate").rate.latency_us > half.axis("shard").rate.latency_us);
    CHECK(sum_over(mesh.axis("tensor")) == static_cast<float>(rank / 2 * 4 + 1));
  };
  atoll_test::run_thread_ranks(8, body, [](atoll::Config& config) { config.islands = 2; });
}
