// The memory plan of an engine equals the memory that the engine allocates.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"

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
  // No copy is needed, because compute reads the master weights themselves.
  CHECK(whole.parameters == 0);
  CHECK(whole.resident == units * unit_bytes);
  CHECK(whole.gradients == units * unit_bytes);
  CHECK(whole.optimizer == 2 * units * unit_bytes);
  CHECK(whole.gathered == 0);
  CHECK(whole.whole_gradients == 0);
  CHECK(quarter.parameters == whole.resident / 4);
  CHECK(quarter.resident == 0);
  CHECK(quarter.gradients == whole.gradients / 4);
  CHECK(quarter.optimizer == whole.optimizer / 4);
  CHECK(quarter.gathered == 2 * unit_bytes);
  CHECK(quarter.whole_gradients == 2 * unit_bytes);
}

TEST_CASE("with all options the allocated bytes are those of the plan") {
  const auto check = [](const atoll::Mesh& mesh, const fsdp::Options& options) {
    fsdp::Engine engine(mesh, options);
    for (const auto& unit : toy_mixed_units()) {
      std::vector<fsdp::ParamSpec> params;
      for (const auto& [size, trainable, dtype] : unit.params)
        params.push_back({std::to_string(params.size()), {size}, {}, trainable, dtype});
      engine.add_unit(unit.name, std::move(params));
    }
    engine.seal(toy_order());
    CHECK(engine.device().allocated_bytes() == engine.memory().total());
    const fsdp::Optimizer optimizer(engine);
    CHECK(engine.device().allocated_bytes() == engine.memory().total());
  };
  // In deterministic mode core computes sums over three shards with fallbacks, which need scratch
  // memory.
  run_thread_ranks(
      6,
      [&](atoll::World& world) {
        const auto mesh = atoll::Mesh::make(world, {2, 3});
        for (const auto strategy : fsdp::every_strategy()) {
          for (const auto reduce : {atoll::DType::f32, atoll::DType::bf16})
            check(mesh, {.strategy = strategy, .precision = {.reduce = reduce}});
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
    auto pass = engine.begin({}, compute);
    for (const auto& name : order) auto w = pass.forward(engine.unit(name));
    for (auto name = order.rbegin(); name != order.rend(); ++name) {
      auto w = pass.backward(engine.unit(*name));
      const atoll::View g = w.grad("w").view;
      compute.zero(g.data, g.bytes());
    }
    optimizer.step(0.1f, compute);
  }
  compute.synchronize();
  CHECK(engine.device().allocated_bytes() == engine.memory().total());
  return engine.memory().staging;
}

TEST_CASE("fallback reductions need no more memory than planned") {
  const auto check = [](const atoll::Mesh& mesh, Strategy strategy, atoll::DType reduce) {
    return staging_of_steps(mesh, {.strategy = strategy, .precision = {.reduce = reduce}},
                            {30'000});
  };
  run_thread_ranks(
      6,
      [&](atoll::World& world) {
        const auto mesh = atoll::Mesh::make(world, {2, 3});
        for (const auto strategy : fsdp::every_strategy()) {
          check(mesh, strategy, atoll::DType::bf16);
          const auto staging = check(mesh, strategy, atoll::DType::f32);
          if (strategy == Strategy::no_shard) CHECK(staging > 2 * 30'000 * sizeof(float));
        }
      },
      [](atoll::Config& config) { config.deterministic = 1; });
}

// A sum in two levels needs scratch memory, a flat one of the backend does not.
TEST_CASE("two levels for small sums only need no more memory than planned") {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("atoll-levels-" + std::to_string(::getpid())))
          .string();
  std::ofstream(file) << "reduce_scatter 0 two_level\nreduce_scatter 200000 flat\n";
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
          config.tuning = file;
        });
    return bytes;
  };
  constexpr std::int64_t small = 40'000, large = 60'000;  // 160,000 and 240,000 bytes
  const std::uint64_t of_two_hosts = 2 * (small / 4) * sizeof(float);
  CHECK(staging({small, large}) >= staging({large}) + of_two_hosts);
  std::filesystem::remove(file);
}

TEST_CASE("blocks for updates beside a forward do not change with small changes of its time") {
  fsdp::MemoryPlan memory;
  memory.gradients = 4'000'000'000;
  memory.optimizer = 8'000'000'000;
  const auto seconds_for = [](double blocks) { return 0.6 / blocks; };  // 30 GB, 50 GB/s of a block
  for (const double most : {9.0, 17.0, 25.0, 33.0, 49.0}) {
    CAPTURE(most);
    // Forward takes 6 % more or less time in turn, around a time at which the number changes.
    unsigned blocks = fsdp::blocks_beside_forward(memory, seconds_for(most));
    int changes = 0;
    for (int step = 0; step < 20; ++step) {
      const double needed = most * (step % 2 == 0 ? 0.94 : 1.06);
      const unsigned next = fsdp::blocks_beside_forward(memory, seconds_for(needed), blocks);
      changes += next != blocks ? 1 : 0;
      blocks = next;
    }
    CHECK(changes <= 1);
  }
  CHECK(fsdp::blocks_beside_forward(memory, seconds_for(40), 0) == 0);
  CHECK(fsdp::blocks_beside_forward(memory, seconds_for(31), 0) == 32);
  CHECK(fsdp::blocks_beside_forward(memory, seconds_for(3), 32) == 8);
}

TEST_CASE("blocks for updates beside a forward follow from the bytes of the trainable parameters") {
  fsdp::MemoryPlan memory;
  memory.gradients = 4'000'000'000;
  memory.optimizer = 8'000'000'000;
  // 30 GB at 50 GB/s of a block.
  CHECK(fsdp::blocks_beside_forward(memory, 1) == 8);
  CHECK(fsdp::blocks_beside_forward(memory, 0.05) == 16);
  CHECK(fsdp::blocks_beside_forward(memory, 0.02) == 32);
  CHECK(fsdp::blocks_beside_forward(memory, 0.018) == 32);  // 33.3 would be enough
  CHECK(fsdp::blocks_beside_forward(memory, 0.0126) == 32);
  CHECK(fsdp::blocks_beside_forward(memory, 0.0124) == 0);  // more than 48: updates take too long
  // Parameters that are frozen, or whole on each rank, are not updated.
  memory.parameters = memory.resident = 100'000'000'000;
  CHECK(fsdp::blocks_beside_forward(memory, 0.05) == 16);
  CHECK(fsdp::blocks_beside_forward({}, 1) == 8);
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    CHECK_THROWS_AS(fsdp::blocks_beside_forward(memory, wrong), atoll::Error);
  }
}
