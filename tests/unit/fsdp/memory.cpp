// The memory plan of an engine equals the memory that the engine allocates.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
namespace fsdp = atoll::fsdp;
using fsdp::Strategy;

TEST_CASE("on four ranks full_shard needs a quarter of the state plus buffers for two units") {
  constexpr std::uint64_t unit_bytes = 3 * 16'384 * 4, units = 12;
  const auto plan = [&](Strategy strategy) {
    fsdp::MemoryPlan memory;
    run_thread_ranks(4, [&](atoll::World& world) {
      fsdp::Engine engine(atoll::Mesh::make(world, {1, 4}), {.strategy = strategy});
      std::vector<std::string> order;
      for (std::uint64_t u = 0; u < units; ++u) {
        order.push_back("unit." + std::to_string(u));
        engine.add_unit(order.back(), {{"w", {3, 128, 128}, {}}});
      }
      engine.seal(order);
      const fsdp::Optimizer optimizer(engine);
      const std::uint64_t allocated = engine.device().allocated_bytes();
      if (world.rank() == 0) memory = engine.memory();
      // The engine allocates exactly the planned memory.
      CHECK(allocated == engine.memory().total());
    });
    return memory;
  };
  const auto whole = plan(Strategy::no_shard), quarter = plan(Strategy::full_shard);
  const auto state = [](const fsdp::MemoryPlan& memory) {
    return memory.parameters + memory.resident + memory.gradients + memory.optimizer;
  };
  CHECK(state(whole) == 4 * units * unit_bytes);
  CHECK(whole.gathered + whole.whole_gradients == 0);  // compute reads the master weights in place
  CHECK(state(quarter) == state(whole) / 4);
  CHECK(quarter.gathered == 2 * unit_bytes);
  CHECK(quarter.whole_gradients == 2 * unit_bytes);
}

TEST_CASE("an engine that only plans has the plan of one that runs, and no memory") {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard, Strategy::shard_grad}) {
    run_thread_ranks(2, [&](atoll::World& world) {
      const auto plan = [&](bool plan_only) {
        fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}),
                            {.strategy = strategy, .plan_only = plan_only});
        engine.add_unit("a", {{"w", {3, 128, 128}, {}}});
        engine.add_unit("b", {{"w", {77}, {}}});
        engine.seal({"a", "b"});
        engine.add_state("average");
        engine.add_state("counts", [](const auto&, const auto&) { return 5; });
        const std::uint64_t before = engine.device().allocated_bytes();
        const std::string sealed = engine.memory().to_string();
        std::string text;
        {
          const fsdp::Optimizer optimizer(engine, {.moment_dtype = atoll::DType::bf16});
          text = engine.memory().to_string();
          if (plan_only) CHECK(engine.device().allocated_bytes() == before);
        }
        CHECK(engine.memory().to_string() == sealed);
        if (plan_only) {
          CHECK_THROWS_WITH_AS(engine.initialize(1), doctest::Contains("Options::plan_only"),
                               atoll::Error);
          auto stream = engine.device().stream();
          CHECK_THROWS_WITH_AS(static_cast<void>(engine.begin({}, stream)),
                               doctest::Contains("Options::plan_only"), atoll::Error);
        }
        return text;
      };
      CHECK(plan(true) == plan(false));
    });
  }
}

// Trains an engine with units of these sizes for two steps. Returns its staging memory, and checks
// that it needs no more memory than planned.
std::uint64_t staging_of_steps(const atoll::Mesh& mesh, const fsdp::Options& options,
                               const std::vector<std::int64_t>& sizes) {
  fsdp::Engine engine(mesh, options);
  std::vector<std::string> order;
  for (const std::int64_t size : sizes) {
    order.push_back("unit." + std::to_string(order.size()));
    engine.add_unit(order.back(), {{"w", {size}, {}}});
  }
  engine.seal(order);
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine);
  auto compute = engine.device().stream();
  for (int step = 0; step < 2; ++step) {
    run_pass(engine, compute, 0.0f);
    optimizer.step(0.1f, compute);
  }
  compute.synchronize();
  CHECK(engine.device().allocated_bytes() == engine.memory().total());
  return engine.memory().staging;
}

TEST_CASE("with all options the allocated bytes are those of the plan") {
  const auto check = [](const atoll::Mesh& mesh, const fsdp::Options& options) {
    fsdp::Engine engine(mesh, options);
    ToyRun run;
    run.units = toy_mixed_units();
    run.order = toy_order();
    add_toy_units(engine, run);
    CHECK(engine.device().allocated_bytes() == engine.memory().total());
    const fsdp::Optimizer optimizer(engine);
    CHECK(engine.device().allocated_bytes() == engine.memory().total());
  };
  // In deterministic mode the core itself computes sums over three shards, which needs scratch
  // memory. Two steps need no more memory than planned.
  run_thread_ranks(
      6,
      [&](atoll::World& world) {
        const auto mesh = atoll::Mesh::make(world, {2, 3});
        for (const auto strategy : fsdp::every_strategy()) {
          for (const auto reduce : {atoll::DType::f32, atoll::DType::bf16})
            check(mesh, {.strategy = strategy, .precision = {.reduce = reduce}});
          staging_of_steps(mesh, {.strategy = strategy}, {30'000});
        }
      },
      [](atoll::Config& config) { config.deterministic = 1; });
  for (const auto shape : {atoll::MeshShape{1, 4}, atoll::MeshShape{2, 2}}) {
    run_thread_ranks(4, [&](atoll::World& world) {
      const auto mesh = atoll::Mesh::make(world, shape);
      for (const auto strategy : fsdp::every_strategy()) {
        for (const auto accumulation : {fsdp::Accumulation::shard, fsdp::Accumulation::local}) {
          for (const int inner : {0, 2}) {
            for (const auto dtype : {atoll::DType::f32, atoll::DType::bf16}) {
              check(mesh, {.strategy = strategy,
                           .accumulation = accumulation,
                           .precision = {.param = dtype},
                           .secondary_shards = inner,
                           .prefetch = inner});
            }
          }
        }
      }
    });
  }
}

// A two-level sum needs scratch memory; a flat sum of the backend needs none.
TEST_CASE("two levels for small sums only need no more memory than planned") {
  const train_test::TemporaryFolder folder;
  const auto file =
      folder.write("levels", "reduce_scatter 0 two_level\nreduce_scatter 200000 flat\n");
  const auto staging = [&](const std::vector<std::int64_t>& sizes) {
    std::uint64_t bytes = 0;
    run_thread_ranks(
        4,
        [&](atoll::World& world) {
          const auto mine = staging_of_steps(atoll::Mesh::make(world, {1, 4}),
                                             {.strategy = Strategy::full_shard}, sizes);
          if (world.rank() == 0) bytes = mine;
        },
        [&](atoll::Config& config) {
          config.host_id = std::to_string(config.rank / 2);
          config.plugin_path = ATOLL_TEST_PLUGINS;
          config.backend = "levelless";
          config.tuning = file.string();
        });
    return bytes;
  };
  constexpr std::int64_t small = 40'000, large = 60'000;  // 160,000 and 240,000 bytes
  const std::uint64_t of_two_hosts = 2 * (small / 4) * sizeof(float);
  CHECK(staging({small, large}) >= staging({large}) + of_two_hosts);
}

TEST_CASE("blocks for updates beside a forward follow from the bytes of the trainable parameters") {
  fsdp::MemoryPlan memory;
  memory.gradients = 4'000'000'000;
  memory.optimizer = 8'000'000'000;
  // An update moves 30 GB, and a block moves 50 GB/s, so a forward of 1 s needs 0.6 blocks. The
  // result is rounded up to a multiple of 8.
  CHECK(fsdp::blocks_beside_forward(memory, 1) == 8);
  CHECK(fsdp::blocks_beside_forward(memory, 0.02) == 32);
  CHECK(fsdp::blocks_beside_forward(memory, 0.0126) == 32);  // 47.6 needed, limited to 32
  CHECK(fsdp::blocks_beside_forward(memory, 0.0124) == 0);   // above 48: updates take too long
  // `parameters` and `resident` do not change the result, because only gradients and states count.
  memory.parameters = memory.resident = 100'000'000'000;
  CHECK(fsdp::blocks_beside_forward(memory, 0.05) == 16);
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    CHECK_THROWS_AS(fsdp::blocks_beside_forward(memory, wrong), atoll::Error);
  }
  // If the forward time alternates by 6 %, the number of blocks changes at most once.
  unsigned blocks = fsdp::blocks_beside_forward(memory, 0.6 / 17);
  int changes = 0;
  for (int step = 0; step < 20; ++step) {
    const double needed = 17 * (step % 2 == 0 ? 0.94 : 1.06);
    const unsigned next = fsdp::blocks_beside_forward(memory, 0.6 / needed, blocks);
    changes += next != blocks ? 1 : 0;
    blocks = next;
  }
  CHECK(changes <= 1);
}
