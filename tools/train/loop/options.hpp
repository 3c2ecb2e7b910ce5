// Options of one training run. `atoll-train --help` explains each flag.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace train {

struct RunOptions {
  std::string model = "mistral-tiny";
  // Safetensors file, folder or ORG/NAME to start from; none: random weights; empty: the weights of
  // `model`, if it has any.
  std::string init;
  std::vector<std::string> freeze;        // shell patterns of HF names of untrained parameters
  std::int64_t lora_rank = 0;             // rank of the adapters; 0: no adapters
  double lora_alpha = 0;                  // 0: twice the rank
  std::vector<std::string> lora_targets;  // shell patterns of matrices with adapters; empty: all
  std::string lora_base;                  // int8: the frozen matrices in 8 bits; empty: as dtype
  bool lora_merge = false;                // export the model with the adapters added
  // auto, bytes, the path of a SentencePiece model, or ids:N; see tokenizer_for()
  std::string tokenizer = "auto";
  std::string data = "demo";        // sources as DataSpec describes them
  std::string data_type;            // uint16 or uint32: the type of files of raw ids
  std::string train_on = "output";  // output or all; see TrainOn
  std::int64_t samples = 0;         // use the first N samples of each source; 0: all
  std::string eval_data;            // sources of the evaluation
  double eval_split = 0;            // or this share of each source of the training data
  std::int64_t eval_samples = 0;    // evaluate at most this many samples; 0: all
  std::int64_t eval_every = 0;      // steps between evaluations; 0: only after the last step
  std::int64_t show_data = 0;       // print this many samples and end
  bool dry_run = false;             // print the plan of the run and end
  std::int32_t seq = 0;             // longest row in tokens; 0: 512, or 64 for synthetic:copy
  std::int64_t global_batch = 8;    // samples per step, over all ranks
  // Rows in each forward and backward pass of a rank; 0: as many as fit, by largest_micro_batch().
  std::int32_t micro_batch = 1;
  std::string pad_to = "longest";  // longest, seq or pack; see PadTo

  std::string optimizer = "adamw";  // name of the optimizer: adamw, sgd or muon
  double lr = 1e-3;
  std::string lr_schedule = "constant";  // constant, linear, cosine or wsd; see schedule.hpp
  std::int64_t lr_warmup = 20;           // steps in which the learning rate rises linearly from 0
  double lr_min_ratio = 0;               // learning rate at the last step, as a part of lr
  std::int64_t lr_decay_steps = 0;       // steps of the decay of wsd; 0: a tenth of all steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.95;  // Muon's momentum
  double weight_decay = 0;
  // Parameters that decay: all, matrices or matrices-no-embeddings.
  std::string decay = "matrices";
  std::vector<std::string> group;  // parameter groups, each as parse_group() reads it
  double ema = 0;                  // decay of averaged weights; 0: none. See averaging.hpp
  double clip = 1.0;               // largest global gradient norm; 0: no clipping

  std::string strategy = "hybrid_shard";  // name of a strategy, or auto: fsdp::choose_strategy()
  // Largest memory per rank in bytes. 0 means no limit, but --strategy auto then plans for the
  // rank's share of the machine's memory.
  std::uint64_t memory_limit = 0;
  // How gradients accumulate: auto, shard or local, as in atoll::fsdp::Accumulation.
  std::string accumulate = "auto";
  int islands = 0;                   // islands that the mesh assumes; 0: those of the topology
  std::string mesh;                  // "RxS", replicate x shard; empty: planned from the topology
  std::string dtype = "f32";         // f32 or bf16, for parameters and activations
  bool fp8 = false;                  // products of the layers in 8-bit floating point, on GPUs
  std::string reduce_dtype = "f32";  // f32 or bf16, for gradients on the wire
  std::string recompute = "none";    // none, selective or full: activation checkpointing
  std::int64_t head_rows = 0;        // tokens per block of logits; 0: usual_head_rows(device)
  std::string products = "off";      // file of GPUs' fastest algorithms; or "on": the usual; "off"
  std::string device = "auto";       // kind of device: auto, host or cuda
  std::string backend;               // name of a backend; empty: the best that works
  // Number of ranks in a group of partial resharding; 0 turns it off.
  int inner_shards = 0;
  std::string gather = "auto";  // copy-engines, sms or auto; see gather_choice.hpp
  int prefetch = 1;
  int reduce_buffers = 2;
  std::string moments = "f32";
  bool skip_nonfinite = true;
  std::int64_t max_skipped = 10;  // steps in a row that may be non-finite; 0: no limit
  // Compute threads of each CPU rank. 0 means the number of cores of the host divided by its ranks.
  int threads = 0;

  std::int64_t steps = 100;
  double peak_seconds = 0.5;      // seconds to measure the peak of matrix products for MFU
  std::int64_t warmup_steps = 2;  // initial steps that speed figures leave out
  std::uint64_t seed = 0;

  std::string out;
  std::string run_name;
  std::int64_t checkpoint_every = 0;  // steps between checkpoints; 0: only at the end
  std::int64_t keep_last = 2;         // checkpoints to keep; 0: all
  std::int64_t keep_every = 0;        // keep those of every M-th step as well; 0: none
  bool save_checkpoint = true;
  bool checkpoint_beside = true;  // save beside training; the last checkpoint is saved at once
  std::string resume;  // checkpoint folder to continue from; auto: the newest whole one in `out`
  // Properties in which the run may differ from that of the checkpoint; see same_run().
  std::vector<std::string> resume_with_changes;
  std::string max_time;          // time limit of the run, as parse_duration() reads it; empty: none
  std::string export_weights;    // folder or .safetensors file to write at the end
  std::string export_dtype;      // f32, bf16 or f16; empty: dtype
  bool quiet = false;            // hide the progress line
  std::string trace;             // Chrome trace to write at the end
  double check_fabric = 0;       // least share of the promised link rates; 0: not checked
  double fabric_rate = 0;        // promised GB/s of axes across hosts; 0: that of the topology
  bool require_gdr = false;      // fail without GPUDirect RDMA between hosts
  double min_mfu = 0;            // gate: least MFU of the run; 0: none
  std::uint64_t max_memory = 0;  // gate: most bytes of a rank; 0: none
  std::int64_t log_norms = 0;    // steps between norms of each layer; 0: never
  int metrics_port = 0;          // port of the endpoint for Prometheus; 0: none
  std::string metrics_address = "127.0.0.1";
  std::string config_text;  // all flags as --config reads them, for the results folder
  std::string trace_steps;  // "FIRST:LAST", counted from 1; empty: 5 steps after the warm-up
};

// Returns the options with the defaults that depend on the data filled in.
RunOptions resolved(RunOptions options);

// Checks ranges and spellings of resolved options. Reads no file and communicates with no rank.
// Throws Error(invalid_argument) that names the flag.
void check(const RunOptions& options);

// The steps that --trace covers, counted from 1, in a run that continues after `done` steps.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;  // a last step before the first means that no step is traced
};
StepRange traced_steps(const RunOptions& options, std::int64_t done);

nlohmann::json to_json(const RunOptions& options);

// The given run name, or MODEL-DATA-STRATEGY.
std::string run_name(const RunOptions& options);

}  // namespace train
