// A run of atoll-train as the files in its folder describe it, for --explain.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plan/explain.hpp"

namespace plan {

// The settings of a run, from its run_args.json. Texts are values of atoll-train's flags.
struct RunSettings {
  std::string model{};
  std::string strategy{}, mesh{}, dtype{}, reduce_dtype{}, moments{}, recompute{}, prefetch{};
  std::int64_t seq = 0;  // tokens of the longest row
  std::int64_t micro_batch = 0, global_batch = 0;
  int hosts = 1, ranks_per_host = 1;  // with --islands: number of islands, and ranks per island
  std::int64_t lora_rank = 0;
  bool fp8 = false;
  // Flags that change the speed but that no prediction considers, with their values.
  std::vector<std::string> not_predicted{};
};

struct PastRun {
  Measurement measured{};
  std::string gpu{};  // name of a GPU; "" if the file does not say it
  bool on_cpus = false;
  std::int64_t parameters = 0;  // number in the model; 0 if unknown, or if the run trains adapters
  // Nothing without a run_args.json beside metrics.json.
  std::optional<RunSettings> settings{};
  std::int64_t row_tokens = 0;  // mean tokens of a row with its padding; 0 without settings
};

// Reads a run. `place` is its results folder or the metrics.json in it. Throws Error(io) and
// Error(bad_data).
PastRun read_run(const std::filesystem::path& place);

}  // namespace plan
