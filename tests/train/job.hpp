// Training jobs for tests: train::run on ranks that are threads, with what every rank came to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "loop/trainer.hpp"

namespace train_test {

// "layers.0/self_attn.q_proj.weight" -> elements.
using Weights = std::map<std::string, std::vector<float>>;

struct RankResult {
  train::RunResult run;
  Weights weights;  // whole, gathered over this rank's own shard axis
  Weights shards;   // what this rank owns, by parameter and first element
  int shard_index = 0;
};

// The results by rank; throws what the lowest rank threw. `inspect` looks at every rank's engine.
std::vector<RankResult> run_job(int ranks, const train::RunOptions& options,
                                const train::Inspect& inspect = {});

// How sums are ordered: as fast as it goes, or the same whatever the size and placement
// (Config::deterministic).
enum class Order {
  fast,
  deterministic
};

// The results of several jobs, one after the other on the same ranks, by job and rank.
std::vector<std::vector<RankResult>> run_jobs(int ranks, const std::vector<train::RunOptions>& jobs,
                                              Order order);

// What every rank throws; "" for a rank that does not.
std::vector<std::string> failures_of_job(int ranks, const train::RunOptions& options);

// The largest distance of a tensor: norm of the difference over norm.
double distance(const Weights& a, const Weights& b);

// The largest relative difference of a step's loss, and of its gradient norm.
struct CurveDistance {
  double loss = 0;
  double grad_norm = 0;
};
CurveDistance distance(const std::vector<train::StepRecord>& a,
                       const std::vector<train::StepRecord>& b);

// All ranks have the same losses, norms and weights, and those that hold the same shard index (that
// stand in one line of the replicate axis) the same shards: bit for bit.
void check_ranks_agree(const std::vector<RankResult>& ranks);

// A config.json of a model that takes no time: 2 layers, 64 wide, for the bytes tokenizer.
std::string small_model_json(bool tied);

// A smaller one whose every extent that can be is prime, with a tied head.
std::string prime_model_json();

}  // namespace train_test
