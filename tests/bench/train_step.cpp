// Measures the tokens per second of one forward and backward pass on the CPU, and compares the
// speed with the matrix peak of the same machine and number of threads. `train_step --help` lists
// the options. The column `cpu` is the processor time of all threads; on a busy machine it is more
// reliable than the elapsed time in column `p50`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "device/ops.hpp"
#include "model/cpu/cpu_ops.hpp"
#include "model/decoder.hpp"
#include "timed_ops.hpp"

namespace {

using atoll::Buffer;
using atoll::Device;
using atoll::DType;
using atoll::View;
using train::Gradient;
using train::WriteMode;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model = "mistral-tiny";
  std::int64_t seq = 512;
  std::int64_t rows = 1;
  std::int64_t head_rows = 512;
  std::vector<int> threads{1, 2};
  double seconds = 3;
  bool recompute = false;
  bool ops = false;
  std::string json;
};

// A model with arbitrary weights and gradients that runs without an FSDP engine.
class Trial {
 public:
  Trial(const train::ModelConfig& config, train::Ops& ops, const Arguments& arguments, DType dtype)
      : decoder_(config, ops),
        stream_(device_.stream()),
        activations_(decoder_.make_activations(plan(arguments, dtype), device_, stream_)) {
    for (std::size_t unit = 0; unit < decoder_.units(); ++unit) add_unit(unit, dtype);
    const auto tokens = static_cast<std::size_t>(arguments.rows * arguments.seq);
    ids_ = device_.allocate(2 * tokens * sizeof(std::int32_t));
    const View ids = ids_.view(DType::i32);
    for (std::size_t i = 0; i < ids.count; ++i) {
      ids.as<std::int32_t>()[i] =
          static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(config.vocab));
    }
    batch_ = {arguments.rows, arguments.seq, ids.part(0, tokens), ids.part(tokens, tokens)};
    stream_.synchronize();
  }

  double seconds_per_pass() {
    const auto start = Clock::now();
    const train::Step step{stream_, batch_, activations_, 1.0F / static_cast<float>(batch_.size())};
    decoder_.begin(step);
    for (std::size_t unit = 0; unit < decoder_.units(); ++unit) {
      decoder_.forward(step, unit, weights(unit));
    }
    for (std::size_t unit = decoder_.units(); unit-- > 0;) {
      decoder_.backward(step, unit, weights(unit), gradients(unit));
    }
    stream_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  double loss() const {
    const double* total = activations_.total().as<double>();
    return total[0] / total[1];
  }

 private:
  struct Parameter {
    std::size_t unit;
    std::string name;
    Buffer weight, gradient;
  };

  static train::ActivationPlan plan(const Arguments& arguments, DType dtype) {
    return {arguments.rows * arguments.seq, arguments.seq, dtype,
            arguments.recompute ? train::Recompute::full : train::Recompute::none,
            arguments.head_rows};
  }

  void add_unit(std::size_t unit, DType dtype) {
    for (const train::ParamSpec& spec : param_specs(decoder_.config(), unit)) {
      const auto count = static_cast<std::size_t>(spec.count());
      Parameter parameter{unit, spec.name, device_.allocate(count * size_of(dtype)),
                          device_.allocate(count * sizeof(float))};
      const View full = parameter.gradient.view(DType::f32);
      device_.ops().fill_normal(stream_, full,
                                {1, parameters_.size(), 0, spec.mean, spec.deviation});
      device_.ops().cast(stream_, parameter.weight.view(dtype), full);
      stream_.synchronize();
      dtype_ = dtype;
      parameters_.push_back(std::move(parameter));
    }
  }

  const Parameter& parameter(std::size_t unit, std::string_view name) const {
    return *std::find_if(parameters_.begin(), parameters_.end(),
                         [&](const Parameter& p) { return p.unit == unit && p.name == name; });
  }
  train::WeightLookup weights(std::size_t unit) const {
    return [this, unit](std::string_view name) -> atoll::ConstView {
      return parameter(unit, name).weight.view(dtype_);
    };
  }
  train::GradientLookup gradients(std::size_t unit) const {
    return [this, unit](std::string_view name) {
      return Gradient{parameter(unit, name).gradient.view(DType::f32), WriteMode::overwrite};
    };
  }

  train::Decoder decoder_;
  Device device_ = Device::cpu();
  atoll::Stream stream_;
  train::Activations activations_;
  std::deque<Parameter> parameters_;
  DType dtype_ = DType::f32;
  Buffer ids_;
  train::Batch batch_;
};

void print_operations(const train::bench::TimedOps& timed, double passes) {
  std::vector<std::pair<std::string_view, double>> rows;
  double all = 0;
  for (const auto& [name, time] : timed.times()) {
    rows.emplace_back(name, time / passes);
    all += rows.back().second;
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, time] : rows) {
    fmt::print("    {:<22} {:8.3f} ms {:5.1f} %\n", name, time * 1e3, 100 * time / all);
  }
}

nlohmann::json measure(const Arguments& arguments, DType dtype, int threads) {
  const train::ModelConfig config = train::preset(arguments.model);
  const auto cpu_ops = train::cpu::make_ops({.threads = threads});
  train::Ops& ops = *cpu_ops;
  train::bench::TimedOps timed(ops);
  Trial trial(config, arguments.ops ? static_cast<train::Ops&>(timed) : ops, arguments, dtype);
  for (int warm_up = 0; warm_up < 2; ++warm_up) trial.seconds_per_pass();
  timed.reset();
  std::vector<double> times;
  const auto start = Clock::now();
  const double processor = train::bench::processor_seconds();
  while (times.size() < 3 ||
         Clock::now() - start < std::chrono::duration<double>(arguments.seconds)) {
    times.push_back(trial.seconds_per_pass());
  }
  const double used =
      (train::bench::processor_seconds() - processor) / static_cast<double>(times.size());
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double slow = times[(times.size() - 1) * 99 / 100];
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(arguments.rows), arguments.seq);
  const double flops = training_flops(config, lengths) / median;
  const double peak = train::cpu::matrix_peak_flops(dtype, threads);
  const auto tokens = static_cast<double>(arguments.rows * arguments.seq);
  fmt::print("{:<5} {:7} {:9.1f} {:9.1f} {:9.1f} {:10.0f} {:9.0f} {:9.0f} {:6.1f} %   {:.4f}\n",
             atoll::name(dtype), threads, median * 1e3, slow * 1e3, used * 1e3, tokens / median,
             flops / 1e9, peak / 1e9, 100 * flops / peak, trial.loss());
  if (arguments.ops) print_operations(timed, static_cast<double>(times.size()));
  return {{"dtype", atoll::name(dtype)},   {"threads", threads},
          {"p50_ms", median * 1e3},        {"p99_ms", slow * 1e3},
          {"cpu_ms", used * 1e3},          {"tokens_per_s", tokens / median},
          {"gflop_per_s", flops / 1e9},    {"peak_gflop_per_s", peak / 1e9},
          {"share_of_peak", flops / peak}, {"loss", trial.loss()}};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures the speed of a forward and backward pass on the CPU");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", arguments.model, "preset of atoll-train");
  app.add_option("--seq", arguments.seq, "positions per row");
  app.add_option("--rows", arguments.rows, "rows of the micro batch");
  app.add_option("--head-rows", arguments.head_rows,
                 "tokens for which logits are computed at a time");
  app.add_option("--threads", arguments.threads, "threads; one run for each number")
      ->delimiter(',');
  app.add_option("--seconds", arguments.seconds, "duration of each run");
  app.add_flag("--recompute", arguments.recompute, "activation checkpointing");
  app.add_flag("--ops", arguments.ops,
               "print processor time per operation; waits after each operation");
  app.add_option("--json", arguments.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  fmt::print("{}, {} x {} tokens\n", arguments.model, arguments.rows, arguments.seq);
  fmt::print(
      "dtype threads    p50 ms    p99 ms    cpu ms   tokens/s   GFLOP/s      peak    share   "
      "loss\n");
  auto rows = nlohmann::json::array();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int threads : arguments.threads) rows.push_back(measure(arguments, dtype, threads));
  }
  if (arguments.json.empty()) return 0;
  std::ofstream file(arguments.json);
  file << nlohmann::json{{"model", arguments.model}, {"rows", rows}}.dump(1) << '\n';
  return file ? 0 : 1;
}
