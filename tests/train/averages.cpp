// Tests of --ema, the moving average of the weights, and of --log-norms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
namespace fs = std::filesystem;

namespace {

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path());
  options.global_batch = 4;
  options.lr = 3e-3;
  options.warmup_steps = 0;
  options.steps = 2;
  return options;
}

Weights weights_after(train::RunOptions options, std::int64_t steps) {
  options.steps = std::max<std::int64_t>(steps, 1);
  if (steps == 0) options.lr = 0;
  options.ema = 0;
  options.export_weights.clear();
  return run_job(1, options)[0].weights;
}

// The weights of a file, by a run that does not change them.
Weights weights_in(train::RunOptions options, const fs::path& file) {
  options.init = file.string();
  return weights_after(options, 0);
}

// into = keep into + (1 - keep) other.
void average(Weights& into, double keep, const Weights& other) {
  for (auto& [name, values] : into) {
    const auto& more = other.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(keep * static_cast<double>(values[i]) +
                                     (1 - keep) * static_cast<double>(more[i]));
    }
  }
}

double norm_of(const Weights& weights, const std::string& unit) {
  double squares = 0;
  for (const auto& [name, values] : weights) {
    if (!name.starts_with(unit + "/")) continue;
    for (const float value : values) squares += static_cast<double>(value) * value;
  }
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("the exported weights are the moving average, on any number of ranks") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.ema = 0.2;
  Weights expected = weights_after(options, 0);
  average(expected, 2.0 / 11, weights_after(options, 1));  // (1 + n) / (10 + n) for n = 1
  average(expected, 0.2, weights_after(options, 2));       // 3 / 12 for n = 2 is above the decay
  const fs::path file = folder.path() / "average.safetensors";
  folder.write("config.json", small_model_json(false));
  options.export_weights = file.string();
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    options.strategy = ranks == 1 ? "no_shard" : "full_shard";
    const auto run = run_job(ranks, options);
    auto alone = options;
    alone.strategy = "no_shard";
    CHECK(distance(weights_in(alone, file), expected) < (ranks == 1 ? 1e-7 : 1e-4));
    // After the export the engine has its weights again.
    CHECK(distance(run[0].weights, weights_after(alone, 2)) < (ranks == 1 ? 1e-12 : 1e-4));
  }
}

TEST_CASE("averages do not disturb training, and a resumed run continues them") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.strategy = "hybrid_shard";
  options.mesh = "2x2";
  options.dtype = "bf16";
  options.steps = 6;
  options.eval_split = 0.25;
  options.eval_every = 2;
  const auto plain = run_job(4, options);
  options.ema = 0.9;
  options.export_weights = (folder.path() / "whole.safetensors").string();
  const auto averaged = run_job(4, options);
  const auto curve = distance(averaged[0].run.steps, plain[0].run.steps);
  CHECK(curve.loss == 0);
  CHECK(curve.grad_norm == 0);
  const bool same = averaged[0].weights == plain[0].weights;
  CHECK(same);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(averaged[0].run.steps[i].eval_loss == plain[0].run.steps[i].eval_loss);
    CHECK(averaged[0].run.steps[i].eval_loss_average.has_value() == (i % 2 == 1));
  }
  CHECK(averaged[0].run.summary.eval_loss_average ==
        averaged[0].run.steps.back().eval_loss_average);

  auto half = options;
  half.steps = 3;
  half.export_weights.clear();
  half.save_checkpoint = true;
  half.checkpoint_every = 1;  // so that saves also run beside training
  run_job(4, half);
  auto resumed = options;
  resumed.resume = (fs::path(options.out) / "checkpoint").string();
  resumed.export_weights = (folder.path() / "resumed.safetensors").string();
  run_job(4, resumed);
  CHECK(TemporaryFolder::read(options.export_weights) ==
        TemporaryFolder::read(resumed.export_weights));
  resumed.ema = 0;
  check_refused(4, resumed, {"the checkpoint has an average of weights: add"});
  half.ema = 0;
  half.out = (folder.path() / "without").string();
  run_job(4, half);
  half.resume = (fs::path(half.out) / "checkpoint").string();
  half.ema = 0.9;
  check_refused(4, half, {"the checkpoint has no average of weights: leave"});
}

TEST_CASE("a step that was skipped does not count for the average") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.optimizer = "sgd";
  options.lr = 1e30;  // after the first step every gradient is NaN
  options.clip = 0;
  options.max_skipped = 0;
  options.ema = 0.2;
  const auto average_after = [&](std::int64_t steps) {
    options.steps = steps;
    options.export_weights = (folder.path() / (std::to_string(steps) + ".safetensors")).string();
    const auto run = run_job(2, options)[0].run;
    CHECK(run.summary.skipped_steps == steps - 1);
    return TemporaryFolder::read(options.export_weights);
  };
  const bool same = average_after(1) == average_after(3);
  CHECK(same);
}

TEST_CASE("weights that are updated during backward are not averaged") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.ema = 0.9;
  options.clip = 0;
  options.skip_nonfinite = false;
  check_refused(1, options, {"--ema: cannot average weights"});
}

TEST_CASE("the norms of units make up those of the model, with every strategy") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.log_norms = 2;
  options.global_batch = 8;
  options.steps = 4;
  std::vector<train::StepRecord> first;
  for (const char* strategy : {"no_shard", "shard_grad", "full_shard", "hybrid_shard"}) {
    CAPTURE(strategy);
    options.strategy = strategy;
    options.mesh = "2x2";
    const auto ranks = run_job(4, options);
    for (const train::StepRecord& step : ranks[0].run.steps) {
      CAPTURE(step.step);
      CHECK(step.norms.empty() == (step.step % 2 == 1));
      if (step.norms.empty()) continue;
      double squares = 0;
      for (const auto& [unit, norms] : step.norms) squares += norms.gradient * norms.gradient;
      CHECK(std::sqrt(squares) == doctest::Approx(step.grad_norm).epsilon(1e-5));
      if (!first.empty()) {
        const auto& other = first[static_cast<std::size_t>(step.step - 1)];
        for (const auto& [unit, norms] : step.norms) {
          CHECK(norms.gradient == doctest::Approx(other.norms.at(unit).gradient).epsilon(1e-3));
        }
      }
    }
    for (const auto& [unit, norms] : ranks[0].run.steps.back().norms) {
      CHECK(norms.weight == doctest::Approx(norm_of(ranks[0].weights, unit)).epsilon(1e-5));
    }
    if (first.empty()) first = ranks[0].run.steps;
  }
}
