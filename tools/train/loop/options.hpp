// What a run of the trainer is told.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace train {

struct RunOptions {
  std::string model = "mistral-tiny";
  std::string init;                 // folder or file of HF safetensors; "": random from the seed
  std::vector<std::string> freeze;  // patterns of HF names, as a shell has them: not trained
  std::string tokenizer = "bytes";  // or a SentencePiece model
  std::string data = "demo";
  std::int64_t samples = 0;        // the first N; 0: all
  std::int32_t seq = 0;            // longest row; 0: 512, for synthetic:copy 64
  std::int64_t global_batch = 8;   // samples per step, over all ranks
  std::int32_t micro_batch = 1;    // rows per forward and backward of a rank
  std::string pad_to = "longest";  // or seq, pack: length of rows, as PadTo has them

  std::string optimizer = "adamw";  // or sgd
  double lr = 1e-3;
  std::string lr_schedule = "constant";  // or cosine (to a tenth of lr at the last step)
  std::int64_t lr_warmup = 20;           // steps of linear increase
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip = 1.0;  // global norm; 0: off

  std::string strategy = "hybrid_shard";  // or auto: fsdp::choose_strategy
  std::uint64_t memory_limit = 0;    // bytes of a rank, for auto; 0: the host's memory, shared out
  std::string accumulate = "auto";   // shard or local: atoll::fsdp::Accumulation
  std::string mesh;                  // "RxS"; "": planned from the topology
  std::string dtype = "f32";         // of parameters and activations; f32 or bf16
  std::string reduce_dtype = "f32";  // what gradients travel as; f32 or bf16
  std::string recompute = "none";    // selective or full: activation checkpointing
  std::int64_t head_rows = 0;   // tokens whose logits exist at a time; 0: as the device likes it
  std::string device = "auto";  // or host, cuda
  std::string backend;
  int inner_shards = 0;  // ranks that keep between them what forward gathered
  int prefetch = 1;
  int reduce_buffers = 2;
  std::string moments = "f32";
  bool skip_nonfinite = true;
  int threads = 0;  // compute threads of a rank; 0: cores / ranks on the host

  std::int64_t steps = 100;
  std::int64_t warmup_steps = 2;  // left out of the speed figures
  std::uint64_t seed = 0;

  std::string out;
  std::string run_name;
  std::int64_t checkpoint_every = 0;  // steps; 0: only at the end
  bool save_checkpoint = true;
  std::string resume;          // folder of a checkpoint
  std::string export_weights;  // HF safetensors file to write at the end
  bool quiet = false;          // no progress line
  std::string trace;           // Chrome trace to write at the end
  bool require_gdr = false;
  std::string trace_steps;  // "FIRST:LAST", counted from 1; "": 5 steps after the warm-up
};

// With the defaults that depend on the data filled in.
RunOptions resolved(RunOptions options);

// Ranges and spellings that need neither files nor ranks; of resolved options. Throws
// Error(invalid_argument) that names the flag.
void check(const RunOptions& options);

// The steps that --trace covers, counted from 1, of a run that goes on after `done` steps.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;  // before first: none
};
StepRange traced_steps(const RunOptions& options, std::int64_t done);

nlohmann::json to_json(const RunOptions& options);

// The learning rate of step `step`, counted from 0.
double learning_rate(const RunOptions& options, std::int64_t step);

// Given, or MODEL-DATA-STRATEGY.
std::string run_name(const RunOptions& options);

}  // namespace train
