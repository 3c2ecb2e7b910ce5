// metrics.json: the summary of a run beside what ran, in names that other trainers use.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "report/metrics.hpp"

namespace train {

struct RunInfo {
  std::string run_name;
  std::string model;
  std::string dataset;
  std::string tokenizer;
  std::string strategy;  // atoll::fsdp::name
  int replicate = 1;
  int shard = 1;
  std::string dtype = "f32";           // of the parameters that compute reads: f32 or bf16
  std::optional<std::string> gpu0;     // name of the first GPU; nothing on a CPU
  std::string peak_source;             // how SpeedBase::peak_flops was found
  std::string transports;              // what joins the ranks; "": one rank
  std::int64_t peak_memory_bytes = 0;  // largest over the ranks
  // Of a rank, the largest over the ranks: what the memory plan says (rank 0's), what the device
  // has handed out at most, and what the process has resident, shared pages divided by who maps
  // them.
  std::int64_t planned_memory_bytes = 0;
  std::int64_t device_memory_bytes = 0;
  std::int64_t proportional_memory_bytes = 0;
  double wall_time_s = 0;  // of the training loop, warm-up and checkpoints included
};

// Numbers that are not known, or not finite, are null. `fsdp` is the strategy under the name that
// others give it, which is atoll's too. `approx_tokens_per_rank` counts positions with padding, as
// published figures of padded runs do; `tokens_per_s` is without.
nlohmann::json metrics_json(const RunInfo& run, const SpeedBase& base, const Summary& summary);

// One line of steps.jsonl: the record and its rates.
nlohmann::json step_json(const StepRecord& step, const SpeedBase& base);

}  // namespace train
