// The command line of atoll-plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "plan/cluster.hpp"

namespace CLI {
class App;
}

namespace plan {

struct Flags {
  ClusterText cluster{};
  std::string model = "mistral-7b";
  std::string strategy = "auto", mesh, dtype = "bf16", reduce_dtype = "auto", moments = "f32";
  std::string recompute = "auto", framework = "atoll", json;
  std::string attention = "fused";
  std::int64_t seq = 2048, global_batch = 0, vocab = 0;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0;
  std::int64_t micro_batch = 0;
  std::string prefetch = "1";
  std::size_t top = 10;
  int hosts = 0, gpus_per_host = 0;
  double price = 0, tokens = 0, measured = 0, measured_one_host = 0;
  std::string explain, trace;
  std::string device = "auto";
  std::string machine, measure, html, topology;
  bool growth = false, fp8 = false, quiet = false;
  std::int64_t lora_rank = 0;
  std::vector<std::string> curves;
  int micro_batches = 1, threads = 1;
  double measure_seconds = 10;
};

// Adds the flags of atoll-plan, and --version and the like, to `app`. Parsing fills `flags`, which
// must live as long as `app`.
void declare(CLI::App& app, Flags& flags);

// Throws Error(invalid_argument) for values that exclude each other or need another flag.
void check(const Flags& flags);

// --- foreign.cpp: other programs' names of flags and values, and numbers with units ---

// Flags of trainers and of launchers, each with its counterpart here.
std::span<const cli::ForeignName> foreign_flags();

// A check that refuses another program's word for a value, and names the word used here.
cli::Check own_words(std::string_view flag);

// A transform() of CLI11: turns "1.5T" into a number. The names of units are in lower case.
struct Unit {
  std::string_view name;
  double factor;
};
std::function<std::string(std::string)> with_units(std::vector<Unit> units);

// A check that refuses a flag as the name of a file.
std::string file_name(const std::string& word);

}  // namespace plan
