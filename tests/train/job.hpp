// Runs training jobs for tests, with threads as ranks, and collects the results of every rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "loop/trainer.hpp"

namespace train_test {

// Maps "layers.0/self_attn.q_proj.weight" to its elements.
using Weights = std::map<std::string, std::vector<float>>;

// Whether ATOLL_TEST_LONG is set. The short form of a test makes the same checks on fewer steps or
// combinations.
bool long_form();

struct RankResult {
  train::RunResult run;
  Weights weights;  // whole parameters, gathered over this rank's shard axis
  Weights shards;   // the parts that this rank owns, by parameter and first element
  int shard_index = 0;
};

// Runs a job and returns the results by rank. Rethrows the error of the lowest failing rank.
// `inspect` is called with every rank's engine. MFU is measured only for a moment, to save time.
std::vector<RankResult> run_job(int ranks, const train::RunOptions& options,
                                const train::Inspect& inspect = {});

// Order of sums: the fastest, or independent of ranks and placement (Config::deterministic).
enum class Order {
  fast,
  deterministic
};

// Runs several jobs in turn on the same ranks and returns the results by job and rank.
std::vector<std::vector<RankResult>> run_jobs(int ranks, const std::vector<train::RunOptions>& jobs,
                                              Order order);

// Returns the error message of every rank, or "" for a rank that does not fail.
std::vector<std::string> failures_of_job(int ranks, const train::RunOptions& options);

// The largest distance over all tensors: norm of the difference divided by the norm.
double distance(const Weights& a, const Weights& b);

// The largest relative differences over all steps.
struct CurveDistance {
  double loss = 0;
  double grad_norm = 0;
};
CurveDistance distance(const std::vector<train::StepRecord>& a,
                       const std::vector<train::StepRecord>& b);

// Checks bit for bit that all ranks have equal losses, norms and weights, and that ranks with the
// same shard index hold equal shards.
void check_ranks_agree(const std::vector<RankResult>& ranks);

// The config.json of a fast model for the bytes tokenizer: 2 layers, hidden size 64.
std::string small_model_json(bool tied);

// The config.json of a model with a tied head and prime sizes wherever possible.
std::string prime_model_json();

}  // namespace train_test
