// Measures the tokens per second of the trainer with 1, 2 and 4 ranks on this host for all
// strategies, and compares the memory of a rank with the planned memory. The ranks share the cores,
// so four ranks on two cores can at best be as fast as two ranks. Efficiency therefore compares
// with one rank that has as many threads as all ranks together.
//   scaling [--json FILE] [--model NAME] [--seq N] [--steps N]
// Exits with 1 if the memory that a rank allocates differs from the plan by more than 5 %.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "atoll/fsdp.hpp"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Arguments {
  std::string model = "mistral-tiny";
  int seq = 256, steps = 12;
  std::string dtype = "f32";
  std::string file;
};

struct Row {
  int ranks = 1;
  std::string strategy;
  int threads = 1;  // number of compute threads of each rank
};

json measure(const Arguments& arguments, const Row& row, const fs::path& out) {
  const std::string command = fmt::format(
      "ATOLL_LOG=error {} -n {} --timeout 600 {} --model {} --data demo --pad-to seq --seq {} "
      "--global-batch 8 --strategy {} --dtype {} --threads {} --steps {} --warmup-steps 3 "
      "--lr-warmup 0 --no-checkpoint --quiet --out {} > {} 2>&1",
      BENCH_RUN_RANKS, row.ranks, BENCH_TRAINER, arguments.model, arguments.seq, row.strategy,
      arguments.dtype, row.threads, arguments.steps, out.string(), (out / "log").string());
  fs::create_directories(out);
  if (std::system(command.c_str()) != 0) {
    std::ifstream log(out / "log");
    throw std::runtime_error(
        fmt::format("{}\n{}", command, std::string(std::istreambuf_iterator<char>(log), {})));
  }
  json metrics;
  std::ifstream(out / "metrics.json") >> metrics;
  return metrics;
}

json figures(const Row& row, const json& metrics, double alone) {
  const double positions =  // token positions per second, including padding
      metrics.at("tokens_per_s").get<double>() + metrics.at("padded_tokens_per_s").get<double>();
  const auto planned = metrics.at("planned_memory_bytes").get<double>();
  const auto measured = metrics.at("device_memory_bytes").get<double>();
  return {{"ranks", row.ranks},
          {"strategy", row.strategy},
          {"threads", row.threads},
          {"tokens_per_s", positions},
          {"efficiency", alone > 0 ? positions / alone : 1.0},
          {"exposed_comm_fraction", metrics.at("exposed_comm_fraction")},
          {"planned_bytes", planned},
          {"peak_bytes", measured},
          {"over_plan", measured / planned - 1},
          {"process_bytes", metrics.at("proportional_memory_bytes")}};
}

void print(const json& row) {
  const auto number = [&](const char* key) { return row.at(key).get<double>(); };
  fmt::print(
      "{:>5} {:>7}  {:<18} {:>9.0f} {:>10.1f} {:>9.1f} {:>10.1f} {:>10.1f} {:>9.2f} {:>10.1f}\n",
      row.at("ranks").get<int>(), row.at("threads").get<int>(),
      row.at("strategy").get<std::string>(), number("tokens_per_s"), 100 * number("efficiency"),
      100 * number("exposed_comm_fraction"), number("planned_bytes") * 1e-6,
      number("peak_bytes") * 1e-6, 100 * number("over_plan"), number("process_bytes") * 1e-6);
  std::fflush(stdout);
}

int run(const Arguments& arguments) {
  std::string pattern = fs::temp_directory_path() / "bench_scaling_XXXXXX";
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make a temporary folder");
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  fmt::print("{} cores, model {}, {} positions per row, 8 rows per step, {}\n", cores,
             arguments.model, arguments.seq, arguments.dtype);
  fmt::print("{:>5} {:>7}  {:<18} {:>9} {:>10} {:>9} {:>10} {:>10} {:>9} {:>10}\n", "ranks",
             "threads", "strategy", "tokens/s", "% of alone", "% exposed", "planned_MB", "peak_MB",
             "over_%", "process_MB");
  json rows = json::array();
  // Tokens per second of a single rank; the key is the number of threads of that rank.
  std::map<int, double> alone;
  bool fine = true;
  const auto add = [&](const Row& row) {
    const int threads = std::min(row.ranks * row.threads, cores);
    const json metrics = measure(arguments, row, fs::path(pattern) / "out");
    const double best = alone.contains(threads) ? alone[threads] : 0;
    rows.push_back(figures(row, metrics, best));
    if (best == 0) alone[threads] = rows.back().at("tokens_per_s").get<double>();
    fine = fine && std::abs(rows.back().at("over_plan").get<double>()) <= 0.05;
    print(rows.back());
  };
  for (int threads = 1; threads <= std::min(cores, 4); threads *= 2) {
    add({1, "no_shard", threads});
  }
  for (const int ranks : {2, 4}) {
    for (const auto strategy : atoll::fsdp::every_strategy()) {
      add({ranks, std::string(atoll::fsdp::name(strategy)), std::max(1, cores / ranks)});
    }
  }
  fs::remove_all(pattern);
  fmt::print(
      "\n% of alone: relative to one rank with as many threads as these ranks have together, on "
      "the same cores. process_MB: resident memory; a shared page counts as a fraction for each "
      "process that maps it.\nevery rank within 5 % of its plan: {}\n",
      fine ? "yes" : "NO");
  if (!arguments.file.empty()) {
    std::ofstream(arguments.file) << json{{"rows", rows}, {"met", fine}}.dump(1) << '\n';
  }
  return fine ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures training speed and memory over ranks and strategies of one host");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", arguments.model, "a preset of atoll-train, or a config.json");
  app.add_option("--seq", arguments.seq)->check(CLI::Range(2, 65536));
  app.add_option("--steps", arguments.steps, "steps per row, of which three are not timed")
      ->check(CLI::Range(4, 10000));
  app.add_option("--dtype", arguments.dtype, "f32 or bf16");
  app.add_option("--json", arguments.file, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "scaling: {}\n", error.what());
    return 2;
  }
}
