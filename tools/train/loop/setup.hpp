// Prepares a run before its engine exists: tokenizer, data, model shape, mesh, kernels, strategy.
// All checks of the input happen here, alike on every rank.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/mesh.hpp"
#include "data/batches.hpp"
#include "data/dataset.hpp"
#include "loop/options.hpp"
#include "loop/rank_compute.hpp"
#include "loop/run_folder.hpp"
#include "loop/strategy.hpp"
#include "model/config.hpp"

namespace train {

struct Setup {
  std::unique_ptr<const Tokenizer> tokenizer;
  ModelConfig model;
  Dataset dataset;
  std::optional<Dataset> eval;                 // samples of the evaluation
  std::vector<std::filesystem::path> weights;  // the files of --init
  std::filesystem::path config;                // the config.json of the model; empty for a preset
  std::filesystem::path checkpoint;            // checkpoint of the run that --init or --model names
  std::string given;  // value of --init or --model that names the weights, before share_files()
  atoll::Mesh mesh;
  Machine machine;  // device and kernels, which have reserved scratch memory for the model
  DeviceMemory memory;
  atoll::fsdp::StrategyChoice choice;     // the sharding strategy and the reason for it
  std::vector<std::vector<int>> islands;  // the ranks of each island, for the report
  std::string micro_batch_why;  // how --micro-batch 0 chose the rows; empty if the user chose them
  std::string threads_why;  // the limits that decided the number for --threads 0; empty if none did
  std::string rate_why{};   // why --lr is what it is, for the log; empty if it was given
  bool starts_trained() const { return !weights.empty() || !checkpoint.empty(); }

  RunFolder folder;  // the lock of the results folder; none for --dry-run
};

// Opens the data of training and of evaluation. Throws like open_run_data().
RunData open_data(const RunOptions& options, const Tokenizer& tokenizer, const ModelConfig& model);

// Gives every rank the files of the run: shares them among hosts, chooses the tokenizer and
// converts data. The options then name these files. Collective.
void fetch_inputs(atoll::World& world, RunOptions& options);

// Sets RunOptions::micro_batch if it is 0, RunOptions::gather if it is auto, and what
// fetch_inputs() sets. Collective. Throws Error(mismatch) that names the ranks whose data, model,
// weights or options differ from those of most ranks.
Setup prepare(atoll::World& world, RunOptions& options);

// Compares the flags that end a run early, --dry-run and --show-data: a rank that ended early would
// leave the others waiting. Collective. Throws Error(mismatch).
void compare_modes(atoll::World& world, const RunOptions& options);

// Which rank of a job differs from the others.
struct OddOneOut {
  int odd = -1;    // the first rank whose text is not the usual one; -1 if all are equal
  int usual = 0;   // the first rank with the usual text
  int others = 0;  // ranks after `odd` that also differ from the usual text
};

// The usual text is the most frequent one; of several that are equally frequent, that of the lowest
// rank.
OddOneOut odd_one_out(const std::vector<std::string>& texts);

// Exchanges one number of each rank and returns the numbers by rank; `what` names the exchange.
// Collective.
std::vector<std::int64_t> exchange_numbers(atoll::World& world, const char* what,
                                           std::int64_t mine);

BatchOptions batch_options(const RunOptions& options, const Tokenizer& tokenizer,
                           const ModelConfig& model);

// Loads weights from the files of --init, or draws random weights. Collective.
void start_weights(const RunOptions& options, const Setup& setup, atoll::fsdp::Engine& engine);

}  // namespace train
