// Modes of the engine: averaged gradients, trainers that compute on the CPU in their own thread,
// and compute in f16.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/optimizer.hpp"
#include "fsdp/setup.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/jitter_device.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
using namespace std::chrono_literals;
namespace fsdp = atoll::fsdp;
using fsdp::Engine;
using fsdp::Strategy;

namespace {

constexpr std::int64_t elements = 5000;  // spans shards, with padding in the last one

std::vector<float> values_of(Engine& engine) {
  std::vector<float> all;
  engine.visit([&](const auto&, const auto&, std::span<const float> values) {
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

// Makes one step from weights of zero with gradients that differ between ranks. Returns the weights
// of rank 0, which are the negative gradients.
std::vector<float> gradients_of(atoll::MeshShape shape, const fsdp::Options& options,
                                int micro_batches = 1) {
  std::vector<float> result;
  run_thread_ranks(shape.replicate * shape.shard, [&](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, shape), options);
    add_units(engine, {"a"}, elements);
    fsdp::Unit& unit = engine.unit("a");
    set_all(engine, 0.0f);
    fsdp::Optimizer optimizer(engine, plain_sgd);
    auto compute = engine.device().stream();
    for (int micro = 0; micro < micro_batches; ++micro) {
      auto pass = engine.begin({fsdp::PassOptions::Kind::train, micro, micro_batches}, compute);
      { const auto scope = pass.forward(unit); }
      const auto scope = pass.backward(unit);
      compute.enqueue([g = scope.grad("w"), rank = static_cast<float>(world.rank())] {
        for (std::uint64_t i = 0; i < g.view.count; ++i) {
          const float value = 0.37f * static_cast<float>(i % 97) + 1.13f * rank;
          float& out = g.view.as<float>()[i];
          out = g.mode == fsdp::WriteMode::overwrite ? value : out + value;
        }
      });
    }
    optimizer.step(1.0f, compute);
    compute.synchronize();
    const auto weights = values_of(engine);
    if (world.rank() == 0) result = weights;
    world.barrier();
  });
  return result;
}

enum class Computes {
  in_tasks,
  on_host
};

// Trains on a device with random delays. Returns the weights of rank 0, followed by sums of the
// weights that forward read.
std::vector<float> train(Strategy strategy, Computes computes) {
  std::vector<float> result;
  run_thread_ranks(4, [&](atoll::World& world) {
    const auto seed = static_cast<unsigned>(world.rank() * 100);
    Engine engine(atoll::Mesh::make(world, {2, 2}),
                  {.strategy = strategy,
                   .device = atoll::Device(std::make_shared<JitterDevice>(seed)),
                   .synchronous = computes == Computes::on_host});
    add_units(engine, {"a", "b", "c"}, elements);
    engine.initialize(1);
    fsdp::Optimizer optimizer(engine, plain_sgd);
    auto compute = engine.device().stream();
    const auto run = [&](std::function<void()> work) {
      if (computes == Computes::in_tasks) return compute.enqueue(std::move(work));
      work();
    };
    std::vector<float> sums(9);
    for (int step = 0; step < 3; ++step) {
      // Rank 1 is late, so the gathers of the other ranks complete late.
      if (world.rank() == 1) std::this_thread::sleep_for(20ms);
      {
        auto pass = engine.begin({}, compute);
        for (std::size_t u = 0; u < 3; ++u) {
          const auto scope = pass.forward(*engine.units()[u]);
          float* const sum = &sums[static_cast<std::size_t>(step) * 3 + u];
          run([w = scope["w"], sum] {
            for (std::uint64_t i = 0; i < w.count; ++i) *sum += w.as<float>()[i];
          });
        }
        for (std::size_t u = 3; u-- > 0;) {
          const auto scope = pass.backward(*engine.units()[u]);
          run([w = scope["w"], g = scope.grad("w").view, rank = static_cast<float>(world.rank())] {
            for (std::uint64_t i = 0; i < w.count; ++i) {
              g.as<float>()[i] = 0.1f * (w.as<float>()[i] - rank);
            }
          });
        }
      }
      optimizer.step(0.1f, compute);
    }
    compute.synchronize();
    auto weights = values_of(engine);
    weights.insert(weights.end(), sums.begin(), sums.end());
    if (world.rank() == 0) result = std::move(weights);
    world.barrier();
  });
  return result;
}

}  // namespace

TEST_CASE("averaged gradients are the sums times 1 / ranks, bit for bit, in every strategy") {
  for (const atoll::MeshShape shape : {atoll::MeshShape{2, 2}, {1, 3}, {3, 1}, {1, 1}}) {
    const auto factor = static_cast<float>(1.0 / (shape.replicate * shape.shard));
    for (const auto strategy : fsdp::every_strategy()) {
      CAPTURE(fsdp::name(strategy));
      CAPTURE(shape.replicate);
      CAPTURE(shape.shard);
      auto expected = gradients_of(shape, {.strategy = strategy});
      for (float& value : expected) value *= factor;
      CHECK(gradients_of(shape, {.strategy = strategy,
                                 .gradients = fsdp::GradientScale::average}) == expected);
    }
  }
}

TEST_CASE("averages are taken over ranks, not over micro batches") {
  for (const auto accumulation : {fsdp::Accumulation::shard, fsdp::Accumulation::local}) {
    CAPTURE(fsdp::name(accumulation));
    const fsdp::Options options{.accumulation = accumulation,
                                .gradients = fsdp::GradientScale::average};
    auto twice = gradients_of({2, 2}, options);
    for (float& value : twice) value *= 2;
    CHECK(gradients_of({2, 2}, options, 2) == twice);
  }
}

TEST_CASE("a synchronous trainer computes on the CPU, with the bits of tasks on the stream") {
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    const auto in_tasks = train(strategy, Computes::in_tasks);
    CHECK(in_tasks.size() == 3 * elements + 9);
    CHECK(train(strategy, Computes::on_host) == in_tasks);
  }
}

TEST_CASE("wait_gradients of a synchronous engine returns when the gradients are final") {
  run_thread_ranks(2, [](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}),
                  {.strategy = Strategy::full_shard, .synchronous = true});
    add_units(engine, {"a"}, elements);
    fsdp::Unit& unit = engine.unit("a");
    engine.initialize(1);
    auto compute = engine.device().stream();
    {
      auto pass = engine.begin({}, compute);
      { const auto scope = pass.forward(unit); }
      const auto scope = pass.backward(unit);
      if (world.rank() == 1) std::this_thread::sleep_for(100ms);
      std::fill_n(scope.grad("w").view.as<float>(), elements, 1.0f);
    }
    engine.wait_gradients(compute);
    const float gradient = fsdp::state_of(unit).buckets[0].gradient.as<float>()[0];
    if (gradient != 2.0f) throw std::runtime_error("a reduction is still running");
    world.barrier();
  });
}

TEST_CASE("compute in f16 reads rounded masters, with the same bits in every strategy") {
  ToyRun run;
  run.units = toy_units();
  run.order = toy_order();
  run.engine.strategy = Strategy::no_shard;
  run.engine.precision.param = atoll::DType::f16;
  const Weights expected = run_on({2, 2}, run).weights;
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    run.engine.strategy = strategy;
    CHECK(run_on({2, 2}, run).weights == expected);
  }
}

TEST_CASE("a frozen parameter in f16 keeps its bits in a checkpoint") {
  const train_test::TemporaryFolder folder;
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  engine.add_unit("a",
                  {{.name = "w", .shape = {100}, .trainable = false, .dtype = atoll::DType::f16},
                   {.name = "v", .shape = {8}}});
  engine.seal({"a"});
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine, plain_sgd);
  const auto saved = values_of(engine);
  fsdp::save(folder.path(), engine, optimizer);
  set_all(engine, 0.0f);
  fsdp::load(folder.path(), engine, optimizer);
  CHECK(values_of(engine) == saved);
  CHECK(saved[0] == atoll::to_float(atoll::to_float16(saved[0])));
  CHECK(saved[0] != 0.0f);
}
