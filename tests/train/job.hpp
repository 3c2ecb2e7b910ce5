// Runs training jobs for tests, with threads as ranks, and collects the results of every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "loop/trainer.hpp"

namespace train_test {

// Maps the name of a parameter, such as "layers.0/self_attn.q_proj.weight", to the parameter's
// elements.
using Weights = std::map<std::string, std::vector<float>>;

// Returns whether ATOLL_TEST_LONG is set. The short form of a test makes the same checks on fewer
// steps or combinations.
bool long_form();

struct RankResult {
  train::RunResult run;
  Weights weights;  // complete parameters, gathered over the shard axis of this rank
  Weights shards;   // the rank's own parts of parameters, by name and first element
  int shard_index = 0;
};

// Runs a job and returns the results by rank. Deletes the checkpoints in the results folder before
// a job without `resume`. Rethrows the error of the lowest failing rank. Calls `inspect` with every
// rank's engine. The peak FLOP/s for MFU is measured only briefly, to save time.
std::vector<RankResult> run_job(int ranks, const train::RunOptions& options,
                                const train::Inspect& inspect = {});

// Order of additions: the fastest order, or an order that does not depend on ranks and placement
// (Config::deterministic).
enum class Order {
  fast,
  deterministic
};

// Runs several jobs one after the other on the same ranks. Returns the results by job and rank.
std::vector<std::vector<RankResult>> run_jobs(int ranks, const std::vector<train::RunOptions>& jobs,
                                              Order order);

// Runs a job and returns the error message of every rank, or "" for a rank that does not fail.
std::vector<std::string> failures_of_job(int ranks, const train::RunOptions& options);
// Calls `body` on every rank and returns the errors in the same form.
std::vector<std::string> failures_of(int ranks, const std::function<void(atoll::World&)>& body,
                                     const std::string& log = "error");
// Checks that every rank of a job fails, each with a message of one line that contains all `parts`.
void check_refused(int ranks, const train::RunOptions& options,
                   const std::vector<std::string>& parts);

// The log and the results of a job of two ranks.
struct Told {
  std::vector<std::string> lines;     // of the log
  std::vector<std::string> failures;  // of each rank, as failures_of() returns them
  std::vector<train::StepRecord> steps;
  std::vector<std::string> with(std::string_view part) const;  // the lines that contain `part`
  bool says(std::string_view part) const { return !with(part).empty(); }
};
// Runs a job on two ranks and keeps existing checkpoints. Calls `on_line` as each line is logged.
Told listen(const train::RunOptions& options, const std::string& log,
            const std::function<void(std::string_view)>& on_line = {});
// The same for a job that must not fail, with all lines from "info" on.
Told run_and_listen(const train::RunOptions& options);

// Returns the largest relative distance over all tensors: the norm of the difference divided by the
// norm of the tensor.
double distance(const Weights& a, const Weights& b);

// The largest relative differences between the losses and gradient norms of two runs, over all
// steps.
struct CurveDistance {
  double loss = 0;
  double grad_norm = 0;
};
CurveDistance distance(const std::vector<train::StepRecord>& a,
                       const std::vector<train::StepRecord>& b);

// Checks bit for bit that all ranks have equal losses, gradient norms and weights, and that ranks
// with the same shard index hold equal shards.
void check_ranks_agree(const std::vector<RankResult>& ranks);

// Returns the config.json of a small and fast model for the bytes tokenizer, with 2 layers and
// hidden size 64.
std::string small_model_json(bool tied);

// Returns the options of a run of that model without checkpoints, which writes its config.json and
// its results below `folder`.
train::RunOptions plain_run(const std::filesystem::path& folder, bool tied = false);
// Returns the options of a run of three steps of that model on two ranks, with a checkpoint.
train::RunOptions small_run(const std::filesystem::path& folder);

// Returns the config.json of a model with a tied head, and with prime sizes wherever possible.
std::string prime_model_json();

}  // namespace train_test
