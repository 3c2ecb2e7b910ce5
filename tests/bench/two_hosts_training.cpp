// Measures training steps between emulated hosts. For each strategy, prints the time of a step, the
// time of its compute alone, the bytes that must cross the link, and the least time that the
// schedule allows. `two_hosts_training --help` lists the options. Exits with 77 and prints the
// reason if emulated hosts are not possible here, and exits with 1 if a target is missed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "loop/trainer.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "two_hosts/hosts.hpp"
#include "two_hosts/step_bound.hpp"

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr double most_over_bound = 1.10;
constexpr double most_over_bytes = 1.05;
// Required speedup of hybrid sharding over full sharding with the default accumulation.
constexpr double least_gain = 2.0;
constexpr const char* algorithm_variable = "BENCH_ALGORITHM";
// Environment variable with the path of the file to which each job adds its rows.
constexpr const char* rows_variable = "BENCH_ROWS";

struct Arguments {
  // The emulated links are slow enough to limit the time of a step.
  atoll_bench::Hosts hosts{.rate = "200mbit"};
  std::int64_t layers = 6, hidden = 512, ffn = 1408;
  std::int32_t seq = 256;
  std::int64_t steps = 6;
  std::string json;
  bool quick = false;
};

struct Row {
  std::string strategy;
  int accumulation = 1;
  std::string accumulate;
};

train::ModelConfig model_of(const Arguments& arguments) {
  train::ModelConfig model;
  model.layers = arguments.layers;
  model.hidden = arguments.hidden;
  model.heads = 8;
  model.kv_heads = 2;
  model.head_dim = arguments.hidden / model.heads;
  model.ffn = arguments.ffn;
  model.vocab = 259;  // the tokens of the bytes tokenizer: 256 byte values, bos, eos and pad
  model.max_seq = arguments.seq;
  return model;
}

class Bench {
 public:
  Bench(atoll::World& world, const Arguments& arguments)
      : world_(world),
        arguments_(arguments),
        model_(model_of(arguments)),
        raw_(atoll_bench::raw_rates(world)) {
    if (world.rank() == 0) {
      std::string pattern = fs::temp_directory_path() / "bench_training_XXXXXX";
      if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make a temporary folder");
      std::ofstream(pattern + "/config.json") << train::hf_config_json(model_, "bfloat16");
      world.put("bench/folder", pattern);
    }
    folder_ = world.get("bench/folder", std::chrono::seconds(20));
  }
  ~Bench() {
    std::error_code ignored;
    if (world_.rank() == 0) fs::remove_all(folder_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const atoll_bench::RawRates& raw() const { return raw_; }

  Json measure(const Row& row, const std::string& algorithm) {
    const Times alone = run(row, "nothing");
    const Times real = run(row, "host");
    const atoll_bench::StepBound bound = atoll_bench::step_bound(shape(row, alone.step));
    // Number of token positions in a step, including padding.
    const double positions = static_cast<double>(samples(row)) * arguments_.seq;
    return {{"strategy", row.strategy},
            {"accumulation", row.accumulation},
            {"accumulate", row.accumulate},
            {"algorithm", algorithm},
            {"tokens_per_s", positions / real.step},
            {"step_s", real.step},
            {"compute_s", alone.step},
            {"exposed_s", real.exposed},
            {"wire_bytes", real.sent},
            {"ideal_bytes", bound.wire_bytes},
            {"formula_bytes", formula_bytes(row)},
            {"wire_bound_s", bound.wire_seconds},
            {"bound_s", bound.seconds}};
  }

 private:
  struct Times {
    double step = 0;     // median time of the measured steps
    double exposed = 0;  // median exposed communication of the measured steps
    double sent = 0;     // bytes per step that leave the host with the most traffic
  };

  std::int64_t samples(const Row& row) const {
    return std::int64_t{world_.size()} * row.accumulation;
  }

  Times run(const Row& row, const std::string& backend) {
    train::RunOptions options;
    options.model = (fs::path(folder_) / "config.json").string();
    options.data = "demo";
    options.pad_to = "seq";
    options.seq = arguments_.seq;
    options.global_batch = samples(row);
    options.dtype = "bf16";
    options.strategy = row.strategy;
    options.accumulate = row.accumulate;
    options.mesh = fmt::format("{}x{}", world_.hosts().size(), world_.hosts()[0].ranks.size());
    options.backend = backend;
    options.threads = 1;
    options.warmup_steps = 0;
    options.untimed_steps = 2;
    options.steps = options.untimed_steps + arguments_.steps;
    options.out = (fs::path(folder_) / "out").string();
    options.save_checkpoint = false;
    options.quiet = true;
    world_.barrier();
    const double before = atoll_bench::transmitted_bytes();
    const train::RunResult result = train::run(world_, options);
    world_.barrier();
    const double sent = atoll_bench::most(world_, atoll_bench::transmitted_bytes() - before);
    std::vector<double> seconds, exposed;
    for (std::size_t s = 2; s < result.steps.size(); ++s) {
      seconds.push_back(result.steps[s].seconds);
      exposed.push_back(result.steps[s].exposed_comm_seconds);
    }
    std::sort(seconds.begin(), seconds.end());
    std::sort(exposed.begin(), exposed.end());
    const std::size_t middle = seconds.size() / 2;
    return {atoll_bench::most(world_, seconds[middle]), atoll_bench::most(world_, exposed[middle]),
            sent / static_cast<double>(result.steps.size())};
  }

  // Returns the bytes per step that would cross the link if a unit were gathered before each use.
  double formula_bytes(const Row& row) const {
    double bytes = 0;
    for (const auto& unit : shape(row, 0).units) {
      bytes += row.accumulation * 2 * unit.gather_bytes +
               (row.accumulation - 1) * unit.reduce_bytes + unit.last_reduce_bytes;
    }
    return bytes;
  }

  // Describes a step for step_bound(). The bytes follow the formulas of two-level collectives for
  // the number of hosts, parameters in bf16 and gradients in f32. `compute` is divided among the
  // units in proportion to the elements of their matrices; one third of each share is forward.
  atoll_bench::StepShape shape(const Row& row, double compute) const {
    const auto hosts = static_cast<double>(world_.hosts().size());
    const double crosses = (hosts - 1) / hosts;
    atoll_bench::StepShape shape;
    shape.micro_batches = row.accumulation;
    shape.link_Bps = raw_.both_ways;
    const bool full = row.strategy == "full_shard", none = row.strategy == "no_shard";
    const bool local = none || row.accumulate == "local";
    if (!full || local) shape.reduce_buffers = 0;
    double all = 0;
    std::vector<double> products;
    for (std::size_t u = 0; u < train::unit_count(model_); ++u) {
      double count = 0, matrices = 0;
      for (const auto& spec : train::param_specs(model_, u)) {
        count += static_cast<double>(spec.count());
        if (u > 0 && spec.shape.size() == 2) matrices += static_cast<double>(spec.count());
      }
      atoll_bench::StepUnit unit;
      unit.gather_bytes = full ? crosses * 2 * count : 0;
      unit.reduce_bytes = full && !local ? crosses * 4 * count : 0;
      unit.last_reduce_bytes = (full ? 1 : 2) * crosses * 4 * count;
      shape.units.push_back(unit);
      products.push_back(matrices);
      all += matrices;
    }
    for (std::size_t u = 0; u < shape.units.size(); ++u) {
      const double mine = compute / row.accumulation * products[u] / all;
      shape.units[u].forward_s = mine / 3;
      shape.units[u].backward_s = mine * 2 / 3;
    }
    return shape;
  }

  atoll::World& world_;
  Arguments arguments_;
  train::ModelConfig model_;
  atoll_bench::RawRates raw_;
  std::string folder_;
};

std::vector<Row> rows_of(const Arguments& arguments, bool ring) {
  std::vector<Row> rows;
  for (const int accumulation : {1, 4}) {
    if (arguments.quick && accumulation > 1) continue;
    for (const char* strategy : {"no_shard", "full_shard", "hybrid_shard"}) {
      const bool full = std::string_view(strategy) == "full_shard";
      if (ring && !full) continue;
      if (std::string_view(strategy) == "no_shard") {
        rows.push_back({strategy, accumulation, "local"});
        continue;
      }
      rows.push_back({strategy, accumulation, "shard"});
      if (accumulation > 1 && !ring) rows.push_back({strategy, accumulation, "local"});
    }
  }
  return rows;
}

void print_row(const Json& row) {
  const auto number = [&](const char* key) { return row.at(key).get<double>(); };
  fmt::print(
      "{:<13} {:>2} {:<6} {:<9} {:>9.0f} {:>7.3f} {:>9.3f} {:>9.3f} {:>8.1f} {:>8.1f} {:>7.3f} "
      "{:>7.3f} {:>7.2f}\n",
      row.at("strategy").get<std::string>(), row.at("accumulation").get<int>(),
      row.at("accumulate").get<std::string>(), row.at("algorithm").get<std::string>(),
      number("tokens_per_s"), number("step_s"), number("compute_s"), number("exposed_s"),
      number("wire_bytes") * 1e-6, number("ideal_bytes") * 1e-6, number("wire_bound_s"),
      number("bound_s"), number("step_s") / number("bound_s"));
  std::fflush(stdout);
}

void print_head(const Arguments& arguments, const atoll::World& world,
                const atoll_bench::RawRates& raw, bool ring) {
  if (ring) return;
  fmt::print("{} hosts, {} ranks, links of {}; raw TCP {:.1f} MB/s each way at once\n",
             world.hosts().size(), world.size(), arguments.hosts.rate, raw.both_ways * 1e-6);
  fmt::print("{:<13} {:>2} {:<6} {:<9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7}\n",
             "strategy", "k", "accum", "algorithm", "tokens/s", "step_s", "compute_s", "exposed_s",
             "sent_MB", "ideal_MB", "wire_s", "bound_s", "/ bound");
}

void run(const Arguments& arguments) {
  const char* told = std::getenv(algorithm_variable);
  const bool ring = told != nullptr && std::string_view(told) == "ring";
  atoll::Config config = atoll::Config::from_env();
  config.plugin_path = ATOLL_TEST_PLUGINS;
  if (ring) {
    config.set("ATOLL_ALGORITHM", "all_gather:ring,reduce_scatter:ring,all_reduce:ring");
  }
  atoll::World world = atoll::World::from_env(config);
  Bench bench(world, arguments);
  const bool speaks = world.rank() == 0;
  if (speaks) print_head(arguments, world, bench.raw(), ring);
  Json rows = Json::array();
  for (const Row& row : rows_of(arguments, ring)) {
    rows.push_back(bench.measure(row, ring ? "flat_ring" : "two_level"));
    if (speaks) print_row(rows.back());
  }
  if (!speaks) return;
  const char* file = std::getenv(rows_variable);
  Json all = Json::array();
  if (ring) std::ifstream(file) >> all;
  all.insert(all.end(), rows.begin(), rows.end());
  std::ofstream(file) << all;
}

// Returns the value in column `which` of the row with four micro batches and two-level collectives,
// or 0 if there is no such row.
double figure_of(const Json& rows, const std::string& strategy, const std::string& accumulate,
                 const char* which) {
  for (const Json& row : rows) {
    if (row.at("strategy") == strategy && row.at("accumulation") == 4 &&
        row.at("accumulate") == accumulate && row.at("algorithm") == "two_level") {
      return row.at(which).get<double>();
    }
  }
  return 0;
}

// Checks the bytes counted on the links against the bytes that the formulas predict, and reports
// whether the targets are met.
bool judge_bytes(const Json& rows) {
  double most = 0;
  for (const Json& row : rows) {
    if (row.at("algorithm") != "two_level") continue;
    most = std::max(most, row.at("wire_bytes").get<double>() / row.at("ideal_bytes").get<double>());
  }
  bool met = most <= most_over_bytes;
  fmt::print("two-level steps send at most {:.3f} x the bytes of the formulas, target {:.2f}: {}\n",
             most, most_over_bytes, met ? "met" : "NOT met");
  const double hybrid = figure_of(rows, "hybrid_shard", "shard", "wire_bytes");
  const double formula = figure_of(rows, "hybrid_shard", "shard", "ideal_bytes");
  for (const auto& [accumulate, at_most] : {std::pair("shard", 4.0), std::pair("local", 2.5)}) {
    const double full = figure_of(rows, "full_shard", accumulate, "wire_bytes");
    if (full == 0 || hybrid == 0) continue;
    const double wanted = figure_of(rows, "full_shard", accumulate, "ideal_bytes") / formula;
    const double ratio = full / hybrid;
    const bool fine = std::abs(ratio / wanted - 1) <= most_over_bytes - 1 && ratio <= at_most;
    met = met && fine;
    fmt::print(
        "4 micro batches, accumulation {}: full_shard sends {:.2f} x the bytes of hybrid_shard, "
        "target {:.2f} ({:.1f} if every use gathered its unit): {}\n",
        accumulate, ratio, wanted, at_most, fine ? "met" : "NOT met");
  }
  return met;
}

// Prints all targets and whether they are met. Returns false if a target is missed.
bool judge(const Json& rows) {
  bool met = true;
  double worst = 0;
  for (const Json& row : rows) {
    if (row.at("algorithm") != "two_level") continue;
    worst = std::max(worst, row.at("step_s").get<double>() / row.at("bound_s").get<double>());
  }
  met = worst <= most_over_bound;
  fmt::print(
      "\nsent: bytes that leave a host per step; ideal: the same by the formulas of two levels, "
      "for "
      "the units that are gathered\n");
  fmt::print("two-level steps take at most {:.2f} x their bound, target {:.2f}: {}\n", worst,
             most_over_bound, met ? "met" : "NOT met");
  met = judge_bytes(rows) && met;
  const double hybrid = figure_of(rows, "hybrid_shard", "shard", "tokens_per_s");
  const double full = figure_of(rows, "full_shard", "shard", "tokens_per_s");
  if (full == 0) return met;
  const bool gains = hybrid >= least_gain * full;
  fmt::print(
      "4 micro batches: hybrid_shard is {:.2f} x as fast as full_shard, target {:.1f}: {}; {:.2f} "
      "x if "
      "full_shard accumulates whole gradients\n",
      hybrid / full, least_gain, gains ? "met" : "NOT met",
      hybrid / figure_of(rows, "full_shard", "local", "tokens_per_s"));
  return met && gains;
}

// Runs two jobs, one with two-level collectives and one with flat rings, because a World uses the
// same algorithms until it ends.
int drive(const Arguments& arguments, std::span<char*> own) {
  std::string rows = fs::temp_directory_path() / "bench_rows_XXXXXX";
  const int file = ::mkstemp(rows.data());
  if (file < 0) throw std::runtime_error("cannot make a temporary file");
  ::close(file);
  ::setenv(rows_variable, rows.c_str(), 1);
  ::setenv("ATOLL_LOG", "error", 0);
  int status = 0;
  for (const char* algorithm : {"two_level", "ring"}) {
    ::setenv(algorithm_variable, algorithm, 1);
    status = atoll_bench::start_on_hosts(arguments.hosts, own);
    if (status != 0) break;
  }
  Json all;
  if (status == 0) std::ifstream(rows) >> all;
  fs::remove(rows);
  if (status != 0) return status;
  const bool met = judge(all);
  if (!arguments.json.empty()) {
    std::ofstream out(arguments.json);
    out << Json{{"rows", all}, {"met", met}}.dump(1) << '\n';
    if (!out) throw std::runtime_error("cannot write " + arguments.json);
  }
  return met ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures training steps between emulated hosts for each strategy");
  app.option_defaults()->always_capture_default();
  atoll_bench::add_host_options(app, arguments.hosts);
  app.add_option("--layers", arguments.layers)->check(CLI::PositiveNumber);
  app.add_option("--hidden", arguments.hidden)->check(CLI::PositiveNumber);
  app.add_option("--ffn", arguments.ffn)->check(CLI::PositiveNumber);
  app.add_option("--seq", arguments.seq, "positions per sample")->check(CLI::PositiveNumber);
  app.add_option("--steps", arguments.steps, "timed steps per row")->check(CLI::PositiveNumber);
  app.add_flag("--quick", arguments.quick, "only one micro batch");
  app.add_option("--json", arguments.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!atoll_bench::on_hosts()) {
      return drive(arguments, {argv, static_cast<std::size_t>(argc)});
    }
    run(arguments);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "two_hosts_training: {}\n", error.what());
    return 2;
  }
}
