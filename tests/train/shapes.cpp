// Tests that options which decide how four ranks compute and communicate change no bit of a
// training, or only what they must. equivalence.cpp compares any number of ranks with one process.
//
// Samples have unequal lengths, and 6 samples on 4 ranks leave two ranks without a second sample.
// The short form trains 8 steps on 20 samples, and the long form trains 20 steps on 40 samples.
// Both forms include the short last step of an epoch.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;

namespace {

const std::vector<std::string> strategies{"no_shard",   "shard_optimizer", "shard_grad",
                                          "full_shard", "hybrid_shard",    "hybrid_shard_grad"};

train::RunOptions small(const TemporaryFolder& folder, bool tied = false) {
  train::RunOptions options = plain_run(folder.path(), tied);
  options.samples = long_form() ? 40 : 20;
  options.global_batch = 6;
  options.lr = 3e-4;
  options.warmup_steps = 0;
  options.steps = long_form() ? 20 : 8;
  return options;
}

train::RunOptions sharded(train::RunOptions options, const std::string& strategy) {
  options.strategy = strategy;
  options.mesh = "2x2";
  return options;
}

using Jobs = std::pair<std::vector<RankResult>, std::vector<RankResult>>;

Jobs check_same_bits(const train::RunOptions& a, const train::RunOptions& b) {
  auto left = run_job(4, a), right = run_job(4, b);
  const auto curve = distance(left[0].run.steps, right[0].run.steps);
  CHECK(curve.loss == 0);
  CHECK(curve.grad_norm == 0);
  const bool same = left[0].weights == right[0].weights;
  CHECK(same);
  return {std::move(left), std::move(right)};
}

// Checks that two runs compute the same losses and weights bit for bit, and that each mesh axis
// carried as many bytes in one run as in the other.
void check_same_bits_and_bytes(const train::RunOptions& a, const train::RunOptions& b) {
  const auto [left, right] = check_same_bits(a, b);
  for (std::size_t s = 0; s < left[0].run.steps.size(); ++s) {
    CHECK(left[0].run.steps[s].axis_bytes == right[0].run.steps[s].axis_bytes);
  }
}

}  // namespace

TEST_CASE("strategies on one planned mesh agree bit for bit") {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto options = small(folder, tied);
    options.global_batch = 3;  // one micro batch of 3 samples on 4 ranks, so one rank has no sample
    const auto replicated = run_job(4, sharded(options, "no_shard"));
    for (const auto& strategy : strategies) {
      CAPTURE(strategy);
      const auto ranks = run_job(4, sharded(options, strategy));
      const auto curve = distance(ranks[0].run.steps, replicated[0].run.steps);
      CHECK(curve.loss == 0);
      CHECK(curve.grad_norm == 0);
      const bool same = ranks[0].weights == replicated[0].weights;
      CHECK(same);
    }
  }
}

TEST_CASE("recomputing the layers changes no bit, and gathers nothing again") {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto options = sharded(small(folder, tied), "hybrid_shard");
    for (const char* recompute : {"selective", "full"}) {
      auto again = options;
      again.recompute = recompute;
      check_same_bits_and_bytes(options, again);
    }
  }
}

TEST_CASE("updates beside backward change no bit") {
  const TemporaryFolder folder;
  for (const std::string strategy : {"shard_grad", "hybrid_shard"}) {
    auto options = sharded(small(folder), strategy);
    options.clip = 0;
    auto beside = options;
    beside.skip_nonfinite = false;
    check_same_bits_and_bytes(options, beside);
  }
}

TEST_CASE("samples packed into rows train alike, in fewer micro batches") {
  const TemporaryFolder folder;
  auto options = small(folder);
  options.samples = 40;
  options.seq = 256;
  options.global_batch = 24;
  options.steps = 6;
  const auto reference = run_job(1, options).front();
  const auto unpacked = run_job(4, sharded(options, "full_shard"));
  options.pad_to = "pack";
  const auto alone = run_job(1, options).front();
  const auto packed = run_job(4, sharded(options, "full_shard"));
  check_ranks_agree(packed);
  for (const RankResult& result : {alone, packed[0]}) {
    CHECK(distance(result.run.steps, reference.run.steps).loss <= 1e-5);
    CHECK(distance(result.weights, reference.weights) <= 1e-5);
  }
  double flops = 0, flops_packed = 0;
  for (std::size_t s = 0; s < 6; ++s) {
    const auto &one = reference.run.steps[s], &all = packed[0].run.steps[s];
    CHECK(all.real == one.real);
    // Each micro batch gathers the parameters, so fewer micro batches send fewer bytes.
    CHECK(all.axis_bytes.at("shard") < unpacked[0].run.steps[s].axis_bytes.at("shard") * 6 / 10);
    flops += one.flops;
    flops_packed += alone.run.steps[s].flops;
  }
  // Packing needs fewer FLOPs, because attention stays within a sample and there is less padding.
  CHECK(flops_packed < flops);
}

TEST_CASE("packed rows: strategies and recomputation change no bit") {
  const TemporaryFolder folder;
  auto options = small(folder);
  options.pad_to = "pack";
  options.global_batch = 12;
  options.steps = 6;
  auto again = options;
  again.recompute = "full";
  check_same_bits_and_bytes(sharded(options, "hybrid_shard"), sharded(again, "hybrid_shard"));
  options.global_batch = 3;  // one micro batch of 3 samples on 4 ranks, so one rank has no sample
  check_same_bits(sharded(options, "no_shard"), sharded(options, "full_shard"));
}

TEST_CASE("bf16 stays near f32") {
  const TemporaryFolder folder;
  const auto options = small(folder);
  const auto reference = run_job(1, options).front();
  auto low = options;
  low.dtype = "bf16";
  const auto result = run_job(1, low).front();
  const auto curve = distance(result.run.steps, reference.run.steps);
  const double weights = distance(result.weights, reference.weights);
  MESSAGE("bf16: losses " << curve.loss << ", weights " << weights);
  CHECK(curve.loss > 0);  // if the losses were equal, bf16 would not have been used
  CHECK(curve.loss <= 2e-2);
  CHECK(weights <= 2e-2);
}
