#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/jitter_device.hpp"

using namespace atoll_test;
namespace fsdp = atoll::fsdp;
using fsdp::Strategy;

namespace {

ToyRun toy_run(Strategy strategy = Strategy::hybrid_shard) {
  ToyRun run;
  run.units = toy_units();
  run.order = toy_order();
  run.engine.strategy = strategy;
  return run;
}

// Runs the toy on devices with random delays, whose fresh memory is full of NaN.
ToyResult run_jittered(atoll::MeshShape shape, const ToyRun& run) {
  return run_on(shape, run, [](int rank) {
    return atoll::Device(std::make_shared<JitterDevice>(static_cast<unsigned>(rank * 100)));
  });
}

double distance(const Weights& a, const Weights& b) {
  double worst = 0;
  for (const auto& [name, values] : a) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(values[i]), y = static_cast<double>(b.at(name)[i]);
      difference += (x - y) * (x - y);
      size += y * y;
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

void check_same(const ToyResult& a, const ToyResult& b, double tolerance) {
  CHECK(distance(a.weights, b.weights) <= tolerance);
  REQUIRE(a.norms.size() == b.norms.size());
  for (std::size_t i = 0; i < a.norms.size(); ++i) {
    CHECK(a.norms[i] == doctest::Approx(b.norms[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("every strategy and number of ranks gives the weights of one process") {
  for (const auto kind : {fsdp::OptimizerOptions::Kind::adamw, fsdp::OptimizerOptions::Kind::sgd}) {
    ToyRun run = toy_run(Strategy::no_shard);
    run.optimizer.kind = kind;
    run.optimizer.max_norm = kind == fsdp::OptimizerOptions::Kind::sgd ? 0.0f : 1.0f;
    const auto reference = run_on({1, 1}, run);
    const auto replicated = run_on({2, 2}, run);
    for (const auto strategy : fsdp::every_strategy()) {
      CAPTURE(fsdp::name(strategy));
      run.engine.strategy = strategy;
      for (const atoll::MeshShape shape : {atoll::MeshShape{1, 2}, {3, 1}}) {
        CAPTURE(shape.replicate);
        check_same(run_on(shape, run), reference, 1e-5);
      }
      // On one mesh the strategies agree bit for bit.
      const auto planned = run_on({2, 2}, run);
      check_same(planned, reference, 1e-5);
      CHECK(planned.weights == replicated.weights);
    }
  }
}

TEST_CASE("accumulation over micro batches") {
  for (const auto strategy : fsdp::every_strategy()) {
    ToyRun run = toy_run(strategy);
    run.optimizer = {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0.0f};
    const auto reference = run_on({1, 1}, run);
    run.micro = 3;
    CAPTURE(fsdp::name(strategy));
    for (const auto accumulation : {fsdp::Accumulation::shard, fsdp::Accumulation::local}) {
      CAPTURE(fsdp::name(accumulation));
      run.engine.accumulation = accumulation;
      check_same(run_on({2, 2}, run), reference, 1e-5);
    }
    check_same(run_on({1, 1}, run), reference, 1e-5);
  }
}

TEST_CASE("a unit that is used twice in a pass accumulates both gradients") {
  for (const auto strategy : fsdp::every_strategy()) {
    ToyRun run = toy_run(strategy);
    run.order = {"embed", "layers.0", "layers.1", "head", "embed"};
    run.optimizer = {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0.0f};
    const auto reference = run_on({1, 1}, run);
    CAPTURE(fsdp::name(strategy));
    check_same(run_on({2, 2}, run), reference, 1e-5);
  }
}

TEST_CASE("a device with random delays and memory full of NaN gives the same bits") {
  for (const auto strategy : fsdp::every_strategy()) {
    ToyRun run = toy_run(strategy);
    run.micro = 2;
    CAPTURE(fsdp::name(strategy));
    const auto calm = run_on({2, 2}, run);
    CHECK(run_jittered({2, 2}, run).weights == calm.weights);
  }
}

TEST_CASE("forward and backward of each unit are a range for profilers") {
  auto& ranges = JitterStream::ranges();
  ranges.begun.clear();
  ToyRun run = toy_run();
  run.steps = 1;
  run_jittered({1, 1}, run);
  const std::vector<std::string> expected = {
      "forward embed", "forward layers.0",  "forward layers.1",  "forward head",
      "backward head", "backward layers.1", "backward layers.0", "backward embed"};
  CHECK(ranges.begun == expected);
  CHECK(ranges.open.empty());
}

TEST_CASE("frozen parameters do not change, and a unit may train parameters of two dtypes") {
  ToyRun run = toy_run(Strategy::no_shard);
  run.units = toy_mixed_units();
  ToyRun still = run;
  still.steps = 0;
  const auto start = run_on({1, 1}, still);
  const auto reference = run_on({1, 1}, run);
  for (const char* frozen : {"embed.p0", "layers.0.p1", "layers.1.p1", "head.p1"}) {
    CHECK(reference.weights.at(frozen) == start.weights.at(frozen));
  }
  CHECK(reference.weights.at("layers.0.p2") != start.weights.at("layers.0.p2"));
  const auto replicated = run_on({2, 2}, run);
  check_same(replicated, reference, 1e-4);
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    run.engine.strategy = strategy;
    CHECK(run_on({2, 2}, run).weights == replicated.weights);
    check_same(run_on({1, 3}, run), reference, 1e-4);
  }
}

TEST_CASE("updates in backward give the same bits as updates after backward") {
  for (const auto kind : {fsdp::OptimizerOptions::Kind::adamw, fsdp::OptimizerOptions::Kind::sgd}) {
    for (const auto strategy : fsdp::every_strategy()) {
      ToyRun run = toy_run(strategy);
      run.optimizer = {.kind = kind, .max_norm = 0, .skip_nonfinite = false};
      run.micro = 2;
      CAPTURE(fsdp::name(strategy));
      const auto after = run_on({2, 2}, run);
      run.in_backward = true;
      const auto beside = run_jittered({2, 2}, run);
      CHECK(beside.weights == after.weights);
      CHECK(beside.norms == after.norms);
      run.beside = true;
      CHECK(run_jittered({2, 2}, run).weights == after.weights);
    }
  }
}

TEST_CASE("updates beside the next pass give the same bits as updates before it") {
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    ToyRun run = toy_run(strategy);
    for (const auto accumulation : {fsdp::Accumulation::shard, fsdp::Accumulation::local}) {
      run.engine.accumulation = accumulation;
      run.micro = accumulation == fsdp::Accumulation::local ? 2 : 1;
      run.figures = run.beside = false;
      const auto before = run_on({2, 2}, run);
      run.beside = true;
      CHECK(run_jittered({2, 2}, run).weights == before.weights);
      run.figures = true;  // the host waits for compute, which does not wait for the updates
      run.alternates = true;
      CHECK(run_jittered({2, 2}, run).weights == before.weights);
      run.alternates = false;
    }
  }
}

TEST_CASE("work that waits for the updates reads updated weights") {
  run_thread_ranks(2, [](atoll::World& world) {
    const atoll::Device device(
        std::make_shared<JitterDevice>(7u + static_cast<unsigned>(world.rank())));
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), {.device = device});
    add_units(engine, {"a", "b", "c"}, 50);
    set_all(engine, 1);
    fsdp::Optimizer optimizer(engine, plain_sgd);
    auto compute = engine.device().stream({.name = "compute"});
    for (int step = 0; step < 3; ++step) {
      run_pass(engine, compute, 1.0f);
      optimizer.step(0.25f, compute, {.beside_next_pass = true});
      optimizer.wait_updates(compute);
      const float expected = 1 - 0.5f * static_cast<float>(step + 1);  // two ranks add gradients
      int wrong = 0;
      for (const fsdp::Segment& segment : engine.segments()) {
        compute.enqueue([values = segment.values, expected, &wrong] {
          for (std::uint64_t i = 0; i < values.count; ++i) {
            wrong += values.as<float>()[i] != expected;
          }
        });
      }
      compute.synchronize();
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("secondary shards kept between forward and backward give the same bits") {
  for (const bool mixed : {false, true}) {
    ToyRun run = toy_run(Strategy::full_shard);
    if (mixed) run.units = toy_mixed_units();
    run.micro = 2;
    const auto reference = run_on({1, 4}, run);
    for (const int inner : {1, 2, 4}) {
      CAPTURE(inner);
      run.engine.secondary_shards = inner;
      CHECK(run_jittered({1, 4}, run).weights == reference.weights);
    }
  }
  ToyRun run = toy_run(Strategy::full_shard);
  for (const int wrong : {3, -1}) {
    run.engine.secondary_shards = wrong;
    CHECK_THROWS_AS(run_on({1, 4}, run), std::exception);
  }
}

TEST_CASE("any depth of prefetch, and any number of reduce buffers, give the same bits") {
  ToyRun run = toy_run(Strategy::full_shard);
  const auto one = run_on({1, 2}, run);
  for (const int number : {0, 1, 3, 9}) {
    CAPTURE(number);
    run.engine.prefetch = number;
    run.engine.reduce_buffers = std::max(number, 1);
    CHECK(run_jittered({1, 2}, run).weights == one.weights);
  }
}

TEST_CASE("bf16 parameters stay near f32") {
  for (const auto strategy : fsdp::every_strategy()) {
    ToyRun run = toy_run(strategy);
    const auto reference = run_on({1, 1}, run);
    run.engine.precision.param = atoll::DType::bf16;
    CAPTURE(fsdp::name(strategy));
    CHECK(distance(run_on({2, 2}, run).weights, reference.weights) < 2e-2);
  }
}

TEST_CASE(
    "bf16 moments give the same bits with every strategy, and weights near those of f32 moments") {
  ToyRun run = toy_run(Strategy::no_shard);
  const auto reference = run_on({2, 2}, run);
  run.optimizer.moment_dtype = atoll::DType::bf16;
  const auto replicated = run_on({2, 2}, run);
  CHECK(replicated.weights != reference.weights);
  CHECK(distance(replicated.weights, reference.weights) < 1e-2);
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    run.engine.strategy = strategy;
    CHECK(run_on({2, 2}, run).weights == replicated.weights);
  }
  run.optimizer.seed = 1;
  CHECK(run_on({2, 2}, run).weights != replicated.weights);
  run.optimizer.stochastic_rounding = false;
  const auto nearest = run_on({2, 2}, run);
  run.optimizer.seed = 2;
  CHECK(run_on({2, 2}, run).weights == nearest.weights);
}

TEST_CASE("gradients that are sent in bf16 give weights near those of f32, at half the bytes") {
  for (const auto strategy : fsdp::every_strategy()) {
    ToyRun run = toy_run(strategy);
    run.micro = 2;
    const auto reference = run_on({2, 2}, run);
    run.engine.precision.reduce = atoll::DType::bf16;
    CAPTURE(fsdp::name(strategy));
    const auto low = run_on({2, 2}, run);
    CHECK(distance(low.weights, reference.weights) < 2e-2);
    CHECK(low.weights != reference.weights);
    CHECK(run_jittered({2, 2}, run).weights == low.weights);
    // A single rank sends nothing, so its gradients are not rounded to bf16.
    CHECK(run_on({1, 1}, run).weights != low.weights);
    run_thread_ranks(4, [&](atoll::World& world) {
      std::vector<std::uint64_t> bytes;  // number of gradient bytes sent, for f32 and for bf16
      for (const auto dtype : {atoll::DType::f32, atoll::DType::bf16}) {
        fsdp::Engine engine(atoll::Mesh::make(world, {2, 2}),
                            {.strategy = strategy, .precision = {.reduce = dtype}});
        engine.add_unit("a", {{"w", {5, 4099}}});
        engine.seal({"a"});
        engine.initialize(1);
        auto compute = engine.device().stream();
        auto pass = engine.begin({}, compute);
        { const auto w = pass.forward(engine.unit("a")); }
        {
          const auto w = pass.backward(engine.unit("a"));  // still unsharded: gathers nothing
          bytes.push_back(engine.traffic().shard_bytes + engine.traffic().replicate_bytes);
          const auto gradient = w.grad("w").view;
          compute.zero(gradient.data, gradient.bytes());
        }
        bytes.back() =
            engine.traffic().shard_bytes + engine.traffic().replicate_bytes - bytes.back();
        compute.synchronize();
      }
      CHECK(bytes[0] == 2 * bytes[1]);
      CHECK(bytes[1] > 0);
    });
  }
}

TEST_CASE("an error for a use out of order names the expected unit") {
  run_thread_ranks(1, [](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    auto& a = engine.add_unit("a", {{"w", {8}, {}}});
    auto& b = engine.add_unit("b", {{"w", {8}, {}}});
    CHECK_THROWS_AS(engine.add_unit("a", {}), atoll::Error);
    CHECK_THROWS_AS(engine.seal({"a"}), atoll::Error);
    CHECK_THROWS_AS(engine.seal({"a", "b", "c"}), atoll::Error);
    engine.seal({"a", "b"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    auto pass = engine.begin({}, compute);
    CHECK_THROWS_WITH(
        (void)pass.forward(b),
        doctest::Contains("forward(b): the declared order has unit a here (use 1 of 4)"));
    {
      auto w = pass.forward(a);
      CHECK_THROWS_AS(w["nope"], atoll::Error);
    }
    CHECK_THROWS_AS((void)pass.backward(b), atoll::Error);
    { auto w = pass.forward(b); }
    CHECK_THROWS_AS((void)engine.begin({}, compute), atoll::Error);
    CHECK_THROWS_WITH(
        (void)pass.backward(a),
        doctest::Contains("backward(a): the declared order has unit b here (use 3 of 4)"));
  });
}
