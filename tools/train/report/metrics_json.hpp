// Writes metrics.json and steps.jsonl, under names that other trainers use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/metrics.hpp"

namespace train {

struct RunInfo {
  std::string run_name;
  std::string model;
  std::string dataset;
  std::string tokenizer;
  std::string strategy;  // name of the strategy, from atoll::fsdp::name()
  int replicate = 1;
  int shard = 1;
  std::string dtype = "f32";  // type of the parameters that compute reads: f32 or bf16
  bool fp8 = false;           // products of the layers are in fp8
  std::string gpu;            // name of rank 0's GPU; empty on CPUs
  std::string peak_source;  // where SpeedBase::peak_flops comes from: datasheet, measured or steps
  std::string peak_detail;  // how SpeedBase::measured_flops was measured
  std::string transports;   // transports between the ranks; empty with one rank
  // The largest number of bytes on any rank, but planned_memory_bytes is that of rank 0.
  std::int64_t peak_memory_bytes = 0;     // peak resident memory of the process
  std::int64_t planned_memory_bytes = 0;  // the engine's memory plan, with activations
  std::int64_t device_memory_bytes = 0;   // peak of the bytes allocated on the device
  // Resident memory, where each shared page counts divided by the number of its processes.
  std::int64_t proportional_memory_bytes = 0;
  std::int64_t checkpoints = 0;   // checkpoints that the run has begun
  double checkpoint_stall_s = 0;  // time that rank 0's training has waited for them
  double wall_time_s = 0;  // duration of the training loop, including untimed steps and checkpoints
};

// Unknown and non-finite numbers are null. `fsdp` is whether anything is sharded; other trainers
// read that key.
// `approx_tokens_per_rank` includes padding, like published figures of padded runs; `tokens_per_s`
// does not.
nlohmann::json metrics_json(const RunInfo& run, const SpeedBase& base, const Summary& summary);

// One line of steps.jsonl: a record and its rates.
nlohmann::json step_json(const StepRecord& step, const SpeedBase& base);

// Writes steps.jsonl. Each line is flushed at once, so that an aborted run keeps its curve.
class StepLog {
 public:
  // `first_step` is the number of the next record. If it is above 1, the run is resumed: lines of
  // earlier steps are kept; later lines, and lines cut off by a crash, are removed. Throws
  // Error(io).
  StepLog(const std::filesystem::path& file, std::int64_t first_step);

  // Throws Error(io) with the file name if writing fails, for example on a full disk.
  void add(const StepRecord& step, const SpeedBase& base);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace train
