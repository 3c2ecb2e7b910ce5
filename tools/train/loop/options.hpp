// Options of one training run. The table in loop/flags.cpp explains each member.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace train {

// The value of RunOptions::lr which means that choose_rate() chooses it.
inline constexpr double usual_rate = std::numeric_limits<double>::lowest();

// Empty texts and zeros often mean a default that depends on other options, or that something is
// off. Each struct has a heading in --help-all.
struct DataFlags {
  std::string data = "demo", data_type, tokenizer = "auto", train_on = "output", eval_data;
  std::int64_t samples = 0, eval_samples = 0, eval_every = 0, early_stopping = 0, show_data = 0;
  double eval_split = 0;
  std::int32_t seq = 0;
  std::int64_t global_batch = 8;  // samples per step, over all ranks
  std::int32_t micro_batch = 1;   // rows in each forward and backward pass of a rank
  std::string pad_to = "longest";
};

struct ModelFlags {
  std::string model = "mistral-tiny", init, lora_base;
  std::vector<std::string> freeze, lora_targets;  // shell patterns of tensor names
  std::int64_t lora_rank = 0, head_rows = 0;
  double lora_alpha = 0;
  std::string dtype = "auto", recompute = "none";
  bool lora_merge = false, fp8 = false;
  std::uint64_t seed = 0;
};

struct OptimizerFlags {
  std::string optimizer = "adamw", lr_schedule = "constant", decay = "matrices", moments = "f32";
  double lr = usual_rate, lr_min_ratio = 0, warmup_ratio = 0;
  std::int64_t warmup_steps = 20, lr_decay_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, momentum = 0.95, weight_decay = 0;
  std::vector<std::string> group;  // settings of parameter groups, as parse_group() reads them
  double ema = 0, clip = 1.0;
  bool skip_nonfinite = true;
  std::int64_t max_skipped = 10;
};

struct ShardingFlags {
  std::string strategy = "hybrid_shard", mesh, accumulate = "auto", reduce_dtype = "f32";
  int islands = 0, secondary_shards = 0, prefetch = 1, reduce_buffers = 2;
  std::uint64_t memory_limit = 0;  // bytes per rank
  std::string gather = "auto";
};

struct MachineFlags {
  std::string device = "auto", backend;
  int threads = 0;
  double peak_seconds = 0.5, check_fabric = 0, fabric_rate = 0;
  bool require_gdr = false;
};

struct StepFlags {
  std::int64_t steps = 100, untimed_steps = 2, checkpoint_every = 0, keep_last = 2, keep_every = 0;
  double epochs = 0;
  bool checkpoint_beside = true, save_checkpoint = true, keep_best = false;
  bool dry_run = false, evaluate = false;
  std::string resume, max_time;
  std::vector<std::string> resume_with_changes;  // names in same_run() of values that may differ
};

struct ResultFlags {
  std::string out, run_name, export_weights, export_dtype, trace, trace_steps;
  std::int64_t log_norms = 0;
  int metrics_port = 0;
  std::string metrics_address = "127.0.0.1";
  double min_mfu = 0;
  std::uint64_t max_memory = 0;  // limit in bytes for each rank; 0: no limit
  bool quiet = false;
};

struct RunOptions : DataFlags,
                    ModelFlags,
                    OptimizerFlags,
                    ShardingFlags,
                    MachineFlags,
                    StepFlags,
                    ResultFlags {
  bool usual_warmup = false;  // no flag sets the warm-up, so that short runs shorten it
  std::string config_file;    // the file of --config; "" without one
  std::string config_text;    // all flags in the format of --config, for the results folder
};

// What the value of a flag is for; it may be for several of these.
enum class Use : unsigned {
  none = 0,
  saved = 1,     // run_args.json records the value
  compared = 2,  // all ranks must have the same value
  early = 4,     // the flag ends the run early, so ranks compare it before other flags
  resumed = 8    // a setting of the optimizer that a resumed run must share
};
constexpr Use operator|(Use a, Use b) {
  return static_cast<Use>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool operator&(Use a, Use b) {
  return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0;
}

// Returns the values of the flags of a use by their names, with "_" for "-". `resumed` leaves out
// settings that have no effect in this run.
nlohmann::json to_json(const RunOptions& options, Use use = Use::saved);

// Returns the options with the defaults that depend on the data filled in.
RunOptions resolved(RunOptions options);

// Whether the run only writes --export, by --steps 0.
bool only_exports(const RunOptions& options);

// Checks resolved options, each by itself and beside the others. Reads no file and communicates
// with no rank. Throws Error(invalid_argument) that names the flag.
void check(const RunOptions& options);

// Fills in what depends on the number of training samples: the steps of --epochs, and the warm-up
// steps of --warmup-ratio. Throws like check().
void count_steps(RunOptions& options, std::int64_t samples);

// Returns a line for each group of flags that have values other than the defaults, but no effect
// beside the other flags. The options are resolved and checked.
std::vector<std::string> idle_flags(const RunOptions& options);

// The steps that --trace covers, counted from 1, in a run that continues after `done` steps.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;  // a last step before the first means that no step is traced
};
StepRange traced_steps(const RunOptions& options, std::int64_t done);

// The given run name, or MODEL-DATA-STRATEGY.
std::string run_name(const RunOptions& options);

}  // namespace train
