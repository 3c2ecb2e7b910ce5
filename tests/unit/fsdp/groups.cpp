// Parameter groups, weight decay of matrices alone, and gradient scales.
#include "fsdp/parameter_groups.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/rank_reports.hpp"

using namespace atoll_test;
namespace fsdp = atoll::fsdp;
using fsdp::ParamGroup;
using fsdp::Strategy;

namespace {

// Every weight of the toy model has its own gradient, so a setting for one parameter changes no
// other parameter as long as gradients are not clipped.
ToyRun toy_run(std::vector<ParamGroup> groups, float weight_decay = 0) {
  ToyRun run;
  run.units = toy_units();
  run.order = toy_order();
  run.optimizer = {.weight_decay = weight_decay, .max_norm = 0, .groups = std::move(groups)};
  return run;
}

Weights train(const ToyRun& run, atoll::MeshShape shape = {1, 2}) {
  return run_on(shape, run).weights;
}

// Checks that `mixed` equals `changed` in the parameters of `names`, and `usual` in all others.
void check_mix(const Weights& mixed, const Weights& usual, const Weights& changed,
               const std::vector<std::string>& names) {
  for (const auto& [name, values] : mixed) {
    CAPTURE(name);
    const bool in_group = std::ranges::find(names, name) != names.end();
    CHECK(usual.at(name) != changed.at(name));
    CHECK((values == (in_group ? changed : usual).at(name)));
  }
}

}  // namespace

TEST_CASE("groups: patterns") {
  using fsdp::matches;
  CHECK(matches("", ""));
  CHECK(matches("*", ""));
  CHECK(matches("layers.*.norm", "layers.0.norm"));
  CHECK(matches("*norm*", "layers.0.post_norm.weight"));
  CHECK(matches("*a*b*c", "xaybzbc"));
  CHECK(matches("layers.?.norm", "layers.7.norm"));
  CHECK_FALSE(matches("layers.?.norm", "layers.17.norm"));
  CHECK_FALSE(matches("", "a"));
  CHECK_FALSE(matches("?", ""));
  CHECK_FALSE(matches("layers", "layers.0"));
  CHECK_FALSE(matches("*a*b*c", "xaybzb"));
  CHECK_FALSE(matches("norm", "layers.norm"));
}

TEST_CASE("groups: each setting changes the parameters of the group alone") {
  const std::vector<std::string> names{"layers.0.p1", "layers.1.p1", "head.p0"};
  const auto check = [&](const ParamGroup& settings, float weight_decay) {
    const auto group = [&](const char* pattern) {
      ParamGroup made = settings;
      made.pattern = pattern;
      return made;
    };
    for (const auto moments : {atoll::DType::f32, atoll::DType::bf16}) {
      const auto with = [&](std::vector<ParamGroup> groups, atoll::MeshShape shape) {
        ToyRun run = toy_run(std::move(groups), weight_decay);
        run.optimizer.moment_dtype = moments;
        run.engine.strategy = Strategy::full_shard;
        return train(run, shape);
      };
      for (const atoll::MeshShape shape : {atoll::MeshShape{1, 1}, {1, 4}}) {
        check_mix(with({group("layers.?.p1"), group("head.p0")}, shape), with({}, shape),
                  with({group("*")}, shape), names);
      }
    }
  };
  check({.learning_rate_scale = 0.5f}, 0.0f);
  check({.weight_decay = 0.0f}, 0.2f);
  check({.beta1 = 0.5f}, 0.0f);
  check({.beta2 = 0.5f}, 0.0f);
}

TEST_CASE("groups: the first group that matches applies") {
  const ParamGroup half{.pattern = "layers.*", .learning_rate_scale = 0.5f};
  const ParamGroup none{.pattern = "*", .learning_rate_scale = 0.0f};
  const auto weights = train(toy_run({half, none}));
  CHECK(weights.at("layers.1.p2") == train(toy_run({half})).at("layers.1.p2"));
  ToyRun still = toy_run({});
  still.steps = 0;
  CHECK(weights.at("head.p0") == train(still).at("head.p0"));
}

TEST_CASE("groups: SGD") {
  const auto with = [](std::vector<ParamGroup> groups) {
    ToyRun run = toy_run(std::move(groups));
    run.optimizer.kind = fsdp::OptimizerOptions::Kind::sgd;
    return train(run);
  };
  check_mix(with({{.pattern = "embed.p0", .learning_rate_scale = 0.5f}}), with({}),
            with({{.pattern = "*", .learning_rate_scale = 0.5f}}), {"embed.p0"});
}

namespace {

// An engine of one rank with a matrix and a bias. Calls `step` for each value of `gradients`, after
// a pass that fills all gradients with the value.
Weights run_alone(const fsdp::OptimizerOptions& options, const std::vector<float>& gradients,
                  const std::function<void(fsdp::Optimizer&, atoll::Stream&)>& step) {
  auto world = single_rank();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  fsdp::Unit& unit = engine.add_unit("a", {{"weight", {4, 8}, {1, 0}}, {"bias", {8}, {1, 0}}});
  engine.seal({"a"});
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine, options);
  auto compute = engine.device().stream();
  for (const float value : gradients) {
    {
      auto pass = engine.begin({}, compute);
      { const auto w = pass.forward(unit); }
      const auto w = pass.backward(unit);
      for (const auto& param : unit.params()) {
        compute.enqueue([g = w.grad(param.name).view, value] {
          // Unequal elements, so that a lost factor of one parameter shows in the norm.
          for (std::uint64_t i = 0; i < g.count; ++i) {
            g.as<float>()[i] = value * static_cast<float>(i + 1);
          }
        });
      }
    }
    step(optimizer, compute);
  }
  compute.synchronize();
  return weights_of(engine);
}

std::string error_of_steps(const fsdp::OptimizerOptions& options,
                           const std::function<void(fsdp::Optimizer&, atoll::Stream&)>& step = {}) {
  return error_of(
      [&] { run_alone(options, step ? std::vector<float>{1.0f} : std::vector<float>{}, step); });
}

}  // namespace

TEST_CASE("groups: weight decay of matrices alone") {
  fsdp::OptimizerOptions options = plain_sgd;
  options.weight_decay = 0.5f;
  const auto decayed = [&] {
    return run_alone(options, {0.0f}, [](fsdp::Optimizer& optimizer, atoll::Stream& compute) {
      optimizer.step(1.0f, compute);
    });
  };
  const std::vector<float> whole(32, 1.0f), half(32, 0.5f);
  const std::vector<float> bias(8, 1.0f), half_bias(8, 0.5f);
  CHECK(decayed() == Weights{{"a.weight", half}, {"a.bias", half_bias}});
  options.decay = fsdp::Decay::matrices;
  CHECK(decayed() == Weights{{"a.weight", half}, {"a.bias", bias}});
  // A group overrides the rule.
  options.groups = {{.pattern = "a.bias", .weight_decay = 0.5f},
                    {.pattern = "a.w*", .weight_decay = 0.0f}};
  CHECK(decayed() == Weights{{"a.weight", whole}, {"a.bias", half_bias}});
}

TEST_CASE("groups misuse: settings out of range, and patterns without a match") {
  const std::pair<ParamGroup, const char*> wrong[] = {
      {{.pattern = "a.*"}, "no error"},
      {{.pattern = "weight"},
       "the pattern \"weight\" of a group matches no parameter; a.weight is one of the names"},
      {{.pattern = "*", .learning_rate_scale = -1},
       "learning_rate_scale = -1 of the group \"*\" is not finite and 0 or above"},
      {{.pattern = "*", .weight_decay = -1.0f},
       "weight_decay = -1 of the group \"*\" is not 0 or above"},
      {{.pattern = "*", .beta1 = 1.0f}, "beta1 = 1 of the group \"*\" is not in [0, 1)"},
      {{.pattern = "*", .beta2 = -0.5f}, "beta2 = -0.5 of the group \"*\" is not in [0, 1)"}};
  for (const auto& [group, text] : wrong) {
    fsdp::OptimizerOptions options;
    options.groups = {group};
    CHECK(has(error_of_steps(options), text));
  }
}

TEST_CASE("groups misuse: ranks with other groups") {
  const std::pair<const char*, void (*)(fsdp::OptimizerOptions&)> differences[] = {
      {"OptimizerOptions::decay: all on rank 0, matrices on rank 1",
       [](fsdp::OptimizerOptions& options) { options.decay = fsdp::Decay::matrices; }},
      {"the number of OptimizerOptions::groups: 1 on rank 0, 0 on rank 1",
       [](fsdp::OptimizerOptions& options) { options.groups.clear(); }},
      {"the pattern of OptimizerOptions::groups[0]: \"a.*\" on rank 0, \"*\" on rank 1",
       [](fsdp::OptimizerOptions& options) { options.groups[0].pattern = "*"; }},
      {"beta2 of OptimizerOptions::groups[0]: that of the optimizer on rank 0, 0.5 on rank 1",
       [](fsdp::OptimizerOptions& options) { options.groups[0].beta2 = 0.5f; }}};
  for (const auto& [what, change] : differences) {
    const auto reports = on_threads(2, [&, change = change](atoll::World& world) {
      fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
      engine.add_unit("a", {{"w", {4}}});
      engine.seal({"a"});
      fsdp::OptimizerOptions options;
      options.groups = {{.pattern = "a.*"}};
      if (world.rank() == 1) change(options);
      fsdp::Optimizer optimizer(engine, options);
      return std::string("made");
    });
    for (const std::string& report : reports) {
      CHECK(has(report, "mismatch: Optimizer: ranks disagree about " + std::string(what)));
    }
  }
}

TEST_CASE("gradient scale: norm, clipping and update are those of the scaled gradients") {
  for (const auto kind : {fsdp::OptimizerOptions::Kind::adamw, fsdp::OptimizerOptions::Kind::sgd}) {
    for (const float max_norm : {0.0f, 1.0f}) {
      const fsdp::OptimizerOptions options{.kind = kind, .max_norm = max_norm};
      const auto train = [&](float gradient, float scale, std::vector<float>& norms) {
        return run_alone(options, {gradient, 3 * gradient, gradient},
                         [&](fsdp::Optimizer& optimizer, atoll::Stream& compute) {
                           optimizer.step(0.1f, compute, {.gradient_scale = scale});
                           norms.push_back(optimizer.grad_norm());
                           CHECK(optimizer.last_step() == fsdp::StepResult::updated);
                         });
      };
      std::vector<float> usual, scaled;
      const Weights weights = train(0.25f, 1.0f, usual);
      CHECK(train(0.25f * 1024, 1.0f / 1024, scaled) == weights);
      CHECK(usual == scaled);
      CHECK(usual[0] > 1.0f);
    }
  }
}

TEST_CASE("gradient scale: an overflow skips the step, and the caller learns it") {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<fsdp::StepResult> results;
  const auto step = [&](fsdp::Optimizer& optimizer, atoll::Stream& compute) {
    optimizer.step(0.1f, compute, {.gradient_scale = 1.0f / 4});
    results.push_back(optimizer.last_step());
    CHECK(std::isfinite(optimizer.grad_norm()) == (results.back() == fsdp::StepResult::updated));
  };
  using enum fsdp::StepResult;
  for (const auto& options : {plain_sgd, fsdp::OptimizerOptions{}}) {
    results.clear();
    const Weights weights = run_alone(options, {1.0f, inf, 1.0f, 1.0f}, step);
    CHECK(results == std::vector{updated, skipped, updated, updated});
    CHECK(weights == run_alone(options, {1.0f, 1.0f, 1.0f}, step));
  }
}

TEST_CASE("gradient scale misuse") {
  const auto with = [](float scale) {
    return error_of_steps({}, [&](fsdp::Optimizer& optimizer, atoll::Stream& compute) {
      optimizer.step(0.1f, compute, {.gradient_scale = scale});
    });
  };
  CHECK(with(0.5f) == "no error");
  CHECK(has(with(0), "Optimizer::step: gradient_scale = 0 must be finite and above 0"));
  CHECK(has(with(std::numeric_limits<float>::infinity()), "gradient_scale = inf must be finite"));
  fsdp::OptimizerOptions options = plain_sgd;
  options.skip_nonfinite = false;
  CHECK(has(error_of_steps(options,
                           [](fsdp::Optimizer& optimizer, atoll::Stream& compute) {
                             CHECK(optimizer.update_in_backward(0.1f));
                             optimizer.step(0.1f, compute, {.gradient_scale = 0.5f});
                           }),
            "a gradient scale cannot be combined with update_in_backward()"));
}

TEST_CASE("gradient scale: f16 gradients that overflow are skipped until the scale fits") {
  struct Run {
    std::vector<float> weights{}, scales{};
  };
  const auto run = [](int ranks) {
    Run result;
    run_thread_ranks(ranks, [&](atoll::World& world) {
      fsdp::Engine engine(atoll::Mesh::make(world, {1, ranks}),
                          {.gradients = fsdp::GradientScale::average,
                           .precision = {.param = atoll::DType::f16},
                           .synchronous = true});
      add_units(engine, {"a"}, 1000);
      set_all(engine, 0.0f);
      auto& unit = engine.unit("a");
      fsdp::Optimizer optimizer(engine, plain_sgd);
      auto compute = engine.device().stream();
      float scale = 65536;
      for (int step = 0; step < 60; ++step) {
        auto pass = engine.begin({}, compute);
        { auto w = pass.forward(unit); }
        {
          auto w = pass.backward(unit);
          const auto* const weights = w["w"].as<atoll::float16>();
          auto* const gradient = w.grad("w").view.as<float>();
          // The f16 gradient of (w - 3)^2 / 2; f16 has no finite numbers above 65,504.
          for (int i = 0; i < 1000; ++i)
            gradient[i] = to_float(atoll::to_float16(scale * (to_float(weights[i]) - 3)));
        }
        optimizer.step(0.25f, compute, {.gradient_scale = 1 / scale});
        if (optimizer.last_step() == fsdp::StepResult::skipped) scale /= 2;
        if (world.rank() == 0) result.scales.push_back(scale);
      }
      const Weights weights = weights_of(engine);
      if (world.rank() == 0) result.weights = weights.at("a.w");
    });
    return result;
  };
  const Run alone = run(1);
  // In f16, 3 x 65,536 and 3 x 32,768 overflow, which halves the scale; 3 x 16,384 does not.
  std::vector<float> scales(60, 16384);
  scales[0] = 32768;
  CHECK(alone.scales == scales);
  CHECK(alone.weights == std::vector<float>(1000, alone.weights[0]));
  CHECK(alone.weights[0] == doctest::Approx(3).epsilon(1e-3));
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const Run sharded = run(ranks);
    CHECK(sharded.scales == alone.scales);
    CHECK(sharded.weights == alone.weights);
  }
}
