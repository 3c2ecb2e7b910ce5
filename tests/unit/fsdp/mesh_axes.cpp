// Engines on meshes with more axes than they use: each coordinate on the other axes trains as an
// engine with its own World does.
#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/rank_reports.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
namespace fsdp = atoll::fsdp;
using atoll::Mesh;
using atoll::World;
using fsdp::Strategy;

namespace {

using Texts = std::vector<std::string>;

// The models of the two coordinates on the axis "tensor", which differ in units and shapes.
ToyRun toy_of(int tensor, Strategy strategy) {
  ToyRun run;
  run.units = tensor == 0 ? toy_units() : toy_mixed_units();
  run.order = toy_order();
  run.micro = 1 + tensor;
  run.engine.strategy = strategy;
  return run;
}

void sum_in_order(atoll::Config& config) { config.deterministic = 1; }

// Trains the model of each coordinate on a separate World, with a mesh of 2 x 2 ranks.
std::vector<ToyResult> references(Strategy strategy) {
  return {run_on({2, 2}, toy_of(0, strategy), {}, sum_in_order),
          run_on({2, 2}, toy_of(1, strategy), {}, sum_in_order)};
}

void check_equal(const ToyResult& result, const ToyResult& expected) {
  CHECK(result.weights == expected.weights);
  CHECK(result.norms == expected.norms);
  CHECK(result.sums == expected.sums);
}

// The weights of an engine with one unit and one parameter.
std::vector<float> values_of(fsdp::Engine& engine) {
  std::vector<float> found;
  engine.visit([&](const fsdp::Unit&, const fsdp::ParamSpec&, std::span<const float> values) {
    found.assign(values.begin(), values.end());
  });
  return found;
}

}  // namespace

TEST_CASE("engine axes: every coordinate trains to the bits of an engine with its own World") {
  for (const Strategy strategy :
       {Strategy::hybrid_shard, Strategy::full_shard, Strategy::no_shard}) {
    CAPTURE(fsdp::name(strategy));
    const std::vector<ToyResult> expected = references(strategy);
    run_thread_ranks(
        8,
        [&](World& world) {
          const Mesh mesh = Mesh::make(world, {{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
          const int tensor = mesh.axis("tensor").index;
          const ToyRun run = toy_of(tensor, strategy);
          check_equal(run_toy(mesh.sub({"replicate", "shard"}), run),
                      expected[static_cast<std::size_t>(tensor)]);
          // The engine finds the same two axes in the whole mesh.
          check_equal(run_toy(mesh, run), expected[static_cast<std::size_t>(tensor)]);
        },
        sum_in_order);
  }
}

TEST_CASE("engine axes: other names, another order of axes, and a plan with a tensor axis") {
  const std::vector<ToyResult> expected = references(Strategy::hybrid_shard);
  run_thread_ranks(
      8,
      [&](World& world) {
        const Mesh mesh = Mesh::make(world, {{"fsdp", 2}, {"tp", 2}, {"dp", 2}});
        const int tensor = mesh.axis("tp").index;
        ToyRun run = toy_of(tensor, Strategy::hybrid_shard);
        run.engine.axes = {.replicate = "dp", .shard = "fsdp"};
        check_equal(run_toy(mesh, run), expected[static_cast<std::size_t>(tensor)]);

        atoll::MeshPlan plan;
        plan.replicate = plan.shard = plan.tensor = 2;
        plan.order = {0, 4, 1, 5, 2, 6, 3, 7};
        const Mesh planned = Mesh::from_plan(world, plan);
        CHECK(planned.axis("tensor").index == world.rank() / 4);
        check_equal(run_toy(planned, toy_of(world.rank() / 4, Strategy::hybrid_shard)),
                    expected[static_cast<std::size_t>(world.rank() / 4)]);
      },
      sum_in_order);
}

TEST_CASE("engine axes: wrong axes are one error on every rank") {
  const auto check_all = [](int ranks, std::vector<atoll::AxisSpec> axes,
                            const std::function<fsdp::Options(int rank)>& options,
                            std::string_view text) {
    const auto reports = on_threads(ranks, [&](World& world) {
      fsdp::Engine engine(Mesh::make(world, axes), options(world.rank()));
      return std::string("made");
    });
    for (const std::string& report : reports) CHECK(has(report, text));
  };
  check_all(
      2, {{"replicate", 1}, {"tensor", 2}}, [](int) { return fsdp::Options(); },
      "Engine: the mesh replicate 1 x tensor 2 has no axis \"shard\": set Options::axes.shard");
  check_all(
      1, {{"replicate", 1}, {"shard", 1}},
      [](int) { return fsdp::Options{.axes = {.replicate = "shard"}}; },
      "Engine: Options::axes names the axis \"shard\" twice");
  check_all(
      4, {{"shard", 2}, {"tensor", 2}},
      [](int rank) { return fsdp::Options{.axes = {.shard = rank == 3 ? "tensor" : "shard"}}; },
      "disagree about Options::axes.shard: \"shard\" on rank 0, \"tensor\" on rank 3");
}

TEST_CASE("engine axes: ranks of one engine are compared, and named by their World rank") {
  const auto results = on_threads(4, [](World& world) {
    fsdp::Engine engine(Mesh::make(world, {{"shard", 2}, {"tensor", 2}}));
    engine.add_unit("unit", {{"w", {world.rank() == 3 ? 5 : 4}}});
    try {
      engine.seal({"unit"});
    } catch (const atoll::Error& error) {
      return std::string(error.what());
    }
    return std::string("frozen");
  });
  const std::string differs =
      "seal: ranks disagree about the shape of parameter w of unit unit: 4 on rank 1, "
      "5 on rank 3; all ranks must pass the same";
  CHECK(results == Texts{"frozen", differs, "frozen", differs});
}

TEST_CASE("engine axes: each coordinate saves and loads its own checkpoint") {
  const train_test::TemporaryFolder root;
  run_thread_ranks(4, [&](World& world) {
    const Mesh mesh = Mesh::make(world, {{"shard", 2}, {"tensor", 2}});
    const int tensor = mesh.axis("tensor").index;
    const auto own = root.path() / ("tensor-" + std::to_string(tensor));
    fsdp::Engine engine(mesh);
    CHECK(engine.sharding() == atoll::MeshShape{1, 2});  // without a replicate axis: one replica
    engine.add_unit("unit", {{"w", {20'011 + tensor}}});
    engine.seal({"unit"});
    engine.initialize(7 + static_cast<std::uint64_t>(tensor));
    fsdp::Optimizer optimizer(engine);
    const std::vector<float> saved = values_of(engine);
    fsdp::save(own, engine, optimizer, {{"tensor", std::to_string(tensor)}});
    engine.initialize(99);
    CHECK(values_of(engine) != saved);
    // Only one coordinate loads again, because a load is collective among its ranks alone.
    if (tensor == 1) (void)fsdp::load(own, engine, optimizer);
    const auto extra = fsdp::load(own, engine, optimizer);
    CHECK(extra.at("tensor") == std::to_string(tensor));
    CHECK(values_of(engine) == saved);

    const auto name = [](const fsdp::Unit&, const fsdp::ParamSpec& param) { return param.name; };
    const auto weights = own / "weights.safetensors";
    fsdp::export_weights(weights, engine, atoll::DType::f32, name);
    engine.initialize(99);
    fsdp::import_weights({weights}, engine, name);
    CHECK(values_of(engine) == saved);
  });
}
