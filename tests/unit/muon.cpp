// Muon on sharded matrices: the same bits on any number of ranks, orthogonal updates, resume on
// another number of shards, and its errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "optimizers/muon.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using fsdp::Strategy;

namespace {

struct Run {
  Strategy strategy = Strategy::hybrid_shard;
  muon::Options muon{};
  int first = 0, last = 3;  // steps; a run that begins later loads the checkpoint
  float rate = 0.02f;
  fs::path folder{};  // folder of the checkpoint; empty: no checkpoint
  float broken = 0;   // added to the gradient of the head in the second step
};

// Matrices that are wide, tall and square. The largest has parts on several shards.
void add_units(fsdp::Engine& engine) {
  engine.add_unit("embed", {{"table", {50, 8}}});
  engine.add_unit("layers.0", {{"norm", {16}, {1, 0}}, {"wide", {24, 60}}, {"tall", {60, 24}}});
  engine.add_unit("layers.1", {{"large", {90, 50}}, {"bias", {9}}, {"square", {40, 40}}});
  engine.add_unit("head", {{"out", {8, 50}}, {"frozen", {4, 4}, {}, false}});
  engine.seal({"embed", "layers.0", "layers.1", "head"});
}

float target(std::uint64_t i) {
  return static_cast<float>((i * i + 17 * i) % 1009) / 504.0f - 1.0f;
}

bool in_layers(const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
  return unit.name().starts_with("layers.") && param.shape.size() == 2;
}

// Rank 0 computes the gradient w - target(i), and the other ranks write zeros. So the sums over the
// ranks have the same bits on any number of ranks.
void train_step(fsdp::Engine& engine, int rank, float broken, atoll::Stream& compute) {
  auto pass = engine.begin({}, compute);
  for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
  for (auto it = engine.units().rbegin(); it != engine.units().rend(); ++it) {
    const fsdp::Unit& unit = **it;
    const auto scope = pass.backward(**it);
    for (const auto& param : unit.params()) {
      const fsdp::Gradient gradient = scope.grad(param.name);
      if (gradient.mode == fsdp::WriteMode::none) continue;
      const float extra = unit.name() == "head" ? broken : 0.0f;
      compute.enqueue([w = scope[param.name], g = gradient.view, rank, extra] {
        for (std::uint64_t i = 0; i < g.count; ++i) {
          g.as<float>()[i] = rank == 0 ? w.as<float>()[i] - target(i) + extra : 0.0f;
        }
      });
    }
  }
}

Weights train(const atoll::Mesh& mesh, const Run& run) {
  fsdp::Engine engine(mesh, {.strategy = run.strategy});
  add_units(engine);
  engine.initialize(42);
  muon::Options options = run.muon;
  options.is_hidden = in_layers;
  muon::Muon optimizer(engine, mesh, options);
  // The rank in the engine; with a third axis it is the replica, because there is one shard.
  const int rank = mesh.has_axis("tensor") ? mesh.axis("replicate").index : mesh.world().rank();
  if (run.first > 0) optimizer.set_steps(std::stoi(fsdp::load(run.folder, engine).at("steps")));
  auto compute = engine.device().stream({.name = "compute"});
  for (int step = run.first; step < run.last; ++step) {
    train_step(engine, rank, step == 1 ? run.broken : 0.0f, compute);
    optimizer.step(run.rate, compute);
    CHECK(std::isfinite(optimizer.grad_norm()) == (step != 1 || std::isfinite(run.broken)));
  }
  const std::string steps = std::to_string(optimizer.steps());
  if (!run.folder.empty()) fsdp::save(run.folder, engine, {{"steps", steps}});
  compute.synchronize();
  Weights weights = weights_of(engine);
  weights["steps"] = {static_cast<float>(optimizer.steps())};
  return weights;
}

// Returns the weights, which must be equal on all ranks.
Weights on_ranks(atoll::MeshShape shape, const Run& run) {
  std::mutex mutex;
  std::vector<Weights> results;
  run_thread_ranks(shape.replicate * shape.shard, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, shape);
    Weights weights = train(mesh, run);
    const std::lock_guard lock(mutex);
    results.push_back(std::move(weights));
  });
  for (const Weights& result : results) CHECK(result == results.front());
  return results.front();
}

// Returns the sum of (value - wanted)^2 over all elements, divided by the sum of wanted^2.
double distance(const std::vector<float>& values, const std::function<float(std::size_t)>& wanted) {
  double squares = 0, size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto goal = static_cast<double>(wanted(i));
    squares += (static_cast<double>(values[i]) - goal) * (static_cast<double>(values[i]) - goal);
    size += goal * goal;
  }
  return squares / size;
}

}  // namespace

TEST_CASE("muon: any number of ranks and any strategy give the same bits") {
  Run run;
  run.muon.weight_decay = 0.1f;
  run.muon.max_norm = 0.5f;
  const Weights whole = on_ranks({1, 1}, run);
  for (const auto strategy : fsdp::every_strategy()) {
    for (const atoll::MeshShape shape : {atoll::MeshShape{1, 2}, {2, 2}, {1, 4}, {3, 1}}) {
      CAPTURE(fsdp::name(strategy));
      CAPTURE(shape.replicate);
      CAPTURE(shape.shard);
      run.strategy = strategy;
      CHECK(on_ranks(shape, run) == whole);
    }
  }
}

TEST_CASE("muon: an engine on two axes of three shards over its own ranks only") {
  Run run;
  run.strategy = Strategy::full_shard;
  run.muon.max_norm = 0.5f;
  const Weights expected = on_ranks({2, 1}, run);
  run_thread_ranks(4, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {{"replicate", 2}, {"shard", 1}, {"tensor", 2}});
    CHECK(train(mesh, run) == expected);
  });
}

TEST_CASE("muon: the update of a matrix is nearly orthogonal") {
  Run run;
  run.last = 0;
  const Weights before = on_ranks({1, 1}, run);
  run.last = 1;
  const Weights after = on_ranks({1, 2}, run);
  struct Shape {
    const char* name;
    int rows, columns;
  };
  for (const auto& [name, rows, columns] :
       {Shape{"layers.0.wide", 24, 60}, {"layers.0.tall", 60, 24}, {"layers.1.square", 40, 40}}) {
    CAPTURE(name);
    const double step = 0.02 * 0.2 * std::sqrt(std::max(rows, columns));
    // The squared norm is the sum of the squared singular values. None of these exceeds 1.3, and
    // most are near 1.
    double squared_norm = 0;
    for (std::size_t i = 0; i < before.at(name).size(); ++i) {
      const double update = static_cast<double>(before.at(name)[i] - after.at(name)[i]) / step;
      squared_norm += update * update;
    }
    const double mean = squared_norm / std::min(rows, columns);
    CHECK(mean > 0.3);
    CHECK(mean < 1.4);
  }
  CHECK(before.at("head.frozen") == after.at("head.frozen"));
  CHECK(before.at("head.out") != after.at("head.out"));
}

TEST_CASE("muon: groups change the parameters that they match alone") {
  Run run;
  run.last = 0;
  const Weights start = on_ranks({1, 2}, run);
  run.last = 1;
  run.muon.weight_decay = 0.1f;
  const Weights usual = on_ranks({1, 2}, run);
  run.muon.groups = {{.pattern = "layers.0.wide", .learning_rate_scale = 0.0f},
                     {.pattern = "head.*", .learning_rate_scale = 0.0f},
                     {.pattern = "layers.?.*", .weight_decay = 0.0f}};
  const Weights grouped = on_ranks({1, 2}, run);
  CHECK(grouped.at("embed.table") == usual.at("embed.table"));
  for (const char* name : {"layers.0.wide", "head.out"}) {
    CHECK(grouped.at(name) == start.at(name));
    CHECK(usual.at(name) != start.at(name));
  }
  for (const char* name : {"layers.0.tall", "layers.0.norm", "layers.1.large"}) {
    CHECK(grouped.at(name) != start.at(name));
    CHECK(grouped.at(name) != usual.at(name));
  }
}

TEST_CASE("muon: bf16 products give the weights of f32 as far as bf16 has them") {
  Run run;
  const Weights expected = on_ranks({1, 1}, run);
  run.muon.products = atoll::DType::bf16;
  const Weights weights = on_ranks({1, 1}, run);
  CHECK(on_ranks({2, 2}, run) == weights);
  CHECK(weights.at("embed.table") == expected.at("embed.table"));
  for (const char* name : {"layers.0.wide", "layers.0.tall", "layers.1.large"}) {
    CAPTURE(name);
    const auto& wanted = expected.at(name);
    const double off = distance(weights.at(name), [&](std::size_t i) { return wanted[i]; });
    CHECK(off > 0);
    CHECK(off < 1e-2);
  }
}

TEST_CASE("muon: weights approach their targets") {
  Run run;
  run.last = 60;
  run.rate = 0.05f;
  const Weights weights = on_ranks({1, 2}, run);
  for (const char* name : {"layers.1.large", "layers.0.norm", "embed.table"}) {
    CAPTURE(name);
    CHECK(distance(weights.at(name), target) < 0.5);
  }
}

TEST_CASE("muon: a step with a gradient that is not finite changes nothing") {
  Run run, broken;
  broken.broken = std::numeric_limits<float>::infinity();
  broken.last = run.last + 1;  // the broken step is skipped
  for (const atoll::MeshShape shape : {atoll::MeshShape{1, 1}, {2, 2}}) {
    const Weights weights = on_ranks(shape, broken);
    CHECK(weights == on_ranks(shape, run));
    CHECK(weights.at("steps") == std::vector<float>{3});
  }
}

TEST_CASE("muon: a checkpoint resumes on another number of shards") {
  Run whole;
  whole.last = 6;
  const Weights expected = on_ranks({1, 1}, whole);
  Run run;
  const train_test::TemporaryFolder folder;
  run.folder = folder.path();
  run.strategy = Strategy::full_shard;
  run.last = 3;
  on_ranks({1, 2}, run);
  run.first = 3;
  run.last = 6;
  CHECK(on_ranks({2, 2}, run) == expected);
}

TEST_CASE("muon misuse: wrong options and units, two optimizers, and a use after a move") {
  auto world = single_rank();
  const auto mesh = atoll::Mesh::make(world, {1, 1});
  const auto refused = [&](const muon::Options& options) {
    return error_of([&] {
      fsdp::Engine engine(mesh);
      add_units(engine);
      muon::Muon(engine, mesh, options);
    });
  };
  CHECK(
      has(refused({.products = atoll::DType::f16}), "products of f16 are not supported: use f32"));
  CHECK(has(refused({.groups = {{.pattern = "*.scale"}}}), "\"*.scale\" of a group matches no"));
  muon::Options everything;
  everything.is_hidden = [](const auto&, const auto&) { return true; };
  CHECK(has(refused(everything), "parameter norm of unit layers.0 has 1 dimensions, not 2"));
  fsdp::Engine engine(mesh);
  CHECK(has(error_of([&] { muon::Muon(engine, mesh); }), "call Engine::seal() first"));
  add_units(engine);
  muon::Muon optimizer(engine, mesh);
  CHECK(has(error_of([&] { muon::Muon(engine, mesh); }), "the name is already in use"));
  const muon::Muon moved = std::move(optimizer);
  CHECK(moved.steps() == 0);
  auto compute = engine.device().stream();
  const std::function<void()> calls[] = {
      [&] { optimizer.step(0.1f, compute); },  // NOLINT(bugprone-use-after-move): it is the test
      [&] { static_cast<void>(optimizer.grad_norm()); },
      [&] { static_cast<void>(optimizer.steps()); }, [&] { optimizer.set_steps(1); }};
  for (const auto& call : calls)
    CHECK(has(error_of(call), "this Muon was moved from: use the Muon"));
}
