// Tests of --optimizer muon: an optimizer outside the library in whole runs.
#include <doctest/doctest.h>

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
  options.optimizer = "muon";
  options.weight_decay = 0.1;
  options.decay = "matrices";
  options.samples = 12;
  options.global_batch = 3;  // one micro batch of 3 samples on 4 ranks
  options.lr = 3e-3;
  options.warmup_steps = 0;
  options.steps = 8;
  return options;
}

train::RunOptions sharded(train::RunOptions options, const std::string& strategy) {
  options.strategy = strategy;
  options.mesh = "2x2";
  return options;
}

}  // namespace

TEST_CASE("Muon learns, and all strategies on one mesh agree bit for bit") {
  const TemporaryFolder folder;
  const auto options = base(folder);
  const auto replicated = run_job(4, sharded(options, "no_shard"));
  const auto& steps = replicated[0].run.steps;
  CHECK(steps.back().loss < 0.95 * steps.front().loss);
  for (const char* strategy : {"shard_optimizer", "shard_grad", "full_shard", "hybrid_shard"}) {
    CAPTURE(strategy);
    const auto ranks = run_job(4, sharded(options, strategy));
    check_ranks_agree(ranks);
    const auto curve = distance(ranks[0].run.steps, steps);
    CHECK(curve.loss == 0);
    CHECK(curve.grad_norm == 0);
    const bool same = ranks[0].weights == replicated[0].weights;
    CHECK(same);
  }
  const auto alone = run_job(1, options);
  const auto curve = distance(alone[0].run.steps, steps);
  MESSAGE("one process: losses " << curve.loss << ", gradient norms " << curve.grad_norm);
  CHECK(curve.loss <= 1e-3);
}

TEST_CASE("Muon resumes with the same bits, and on another number of ranks") {
  const TemporaryFolder folder;
  const auto options = sharded(base(folder), "full_shard");
  const auto whole = run_job(4, options);
  auto half = options;
  half.steps = 4;
  half.save_checkpoint = true;
  run_job(4, half);
  auto resumed = options;
  resumed.resume = (fs::path(options.out) / "checkpoint").string();
  const auto again = run_job(4, resumed);
  REQUIRE(again[0].run.steps.size() == 4);
  const bool same = again[0].weights == whole[0].weights;
  CHECK(same);
  auto other = base(folder);
  other.resume = resumed.resume;
  other.strategy = "hybrid_shard";
  other.mesh = "1x2";
  const double weights = distance(run_job(2, other)[0].weights, whole[0].weights);
  MESSAGE("resumed on 2 ranks: weights " << weights);
  CHECK(weights <= 1e-3);
  // AdamW cannot continue with the states of Muon.
  other.optimizer = "adamw";
  check_refused(2, other, {"the state of --optimizer muon, with which adamw cannot go on"});
}

TEST_CASE("Muon refuses flags that it cannot follow") {
  const TemporaryFolder folder;
  const auto refused = [&](const auto& change, const char* reason) {
    auto options = base(folder);
    change(options);
    check_refused(1, options, {reason});
  };
  refused([](auto& o) { o.moments = "bf16"; }, "keeps its states in f32, not in --moments bf16");
  refused([](auto& o) { o.skip_nonfinite = false; }, "remove --no-skip-nonfinite");
  refused([](auto& o) { o.momentum = 1; }, "--momentum: must be in [0, 1)");
  refused([](auto& o) { o.decay = "norms"; }, "--decay norms: use one of all, matrices");
}
