#include "job.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <system_error>

#include "atoll/log.hpp"
#include "loop/checkpoints.hpp"
#include "model/hf_config.hpp"
#include "thread_ranks.hpp"

namespace train_test {
namespace {

namespace fsdp = atoll::fsdp;
namespace fs = std::filesystem;

void quiet(atoll::Config& config) { config.log = "error"; }

double relative(double a, double b) {
  return std::abs(a - b) / std::max({std::abs(a), std::abs(b), 1e-300});
}

// Frozen parameters have no f32 masters, so their values are in the type that compute reads.
std::vector<float> values_of(const atoll::View& view) {
  if (view.dtype == atoll::DType::f32) {
    return {view.as<float>(), view.as<float>() + view.count};
  }
  const auto* values = view.as<atoll::bfloat16>();
  std::vector<float> result(view.count);
  std::transform(values, values + view.count, result.begin(),
                 [](atoll::bfloat16 value) { return atoll::to_float(value); });
  return result;
}

// Deletes the checkpoints of an earlier job in the same folder, which a new job would refuse.
void discard_checkpoints(const atoll::World& world, const train::RunOptions& options) {
  if (world.rank() != 0 || !options.resume.empty() || options.out.empty()) return;
  std::error_code ignored;  // a test may put a file in the place of the folder
  if (!fs::is_directory(fs::path(options.out) / "checkpoints", ignored)) return;
  for (const fs::path& folder : train::find_checkpoints(options.out)) fs::remove_all(folder);
}

RankResult run_rank(atoll::World& world, const train::RunOptions& options,
                    const train::Inspect& inspect) {
  RankResult result;
  train::RunOptions quick = options;
  quick.peak_seconds = 0.01;
  discard_checkpoints(world, options);
  result.run = train::run(world, quick, [&](fsdp::Engine& engine) {
    engine.visit([&](const fsdp::Unit& unit, const fsdp::ParamSpec& param, auto values) {
      result.weights[unit.name() + "/" + param.name].assign(values.begin(), values.end());
    });
    for (const fsdp::Segment& segment : engine.segments()) {
      result.shards[segment.unit->name() + "/" + segment.param->name + "+" +
                    std::to_string(segment.first)] = values_of(segment.values);
    }
    result.shard_index = engine.scheduler().shard_index();
    if (inspect) inspect(engine);
  });
  return result;
}

}  // namespace

bool long_form() { return std::getenv("ATOLL_TEST_LONG") != nullptr; }

std::vector<RankResult> run_job(int ranks, const train::RunOptions& options,
                                const train::Inspect& inspect) {
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  atoll_test::run_thread_ranks(
      ranks,
      [&](atoll::World& world) {
        results[static_cast<std::size_t>(world.rank())] = run_rank(world, options, inspect);
      },
      quiet);
  return results;
}

std::vector<std::vector<RankResult>> run_jobs(int ranks, const std::vector<train::RunOptions>& jobs,
                                              Order order) {
  std::vector<std::vector<RankResult>> results(jobs.size());
  for (auto& of_ranks : results) of_ranks.resize(static_cast<std::size_t>(ranks));
  atoll_test::run_thread_ranks(
      ranks,
      [&](atoll::World& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        for (std::size_t j = 0; j < jobs.size(); ++j) {
          results[j][rank] = run_rank(world, jobs[j], {});
        }
      },
      [&](atoll::Config& config) {
        quiet(config);
        config.deterministic = order == Order::deterministic ? 1 : 0;
      });
  return results;
}

std::vector<std::string> failures_of(int ranks, const std::function<void(atoll::World&)>& body,
                                     const std::string& log) {
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  const auto caught = [&](atoll::World& world) {
    try {
      body(world);
    } catch (const atoll::Error& error) {
      failures[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  };
  try {
    atoll_test::run_thread_ranks(ranks, caught, [&](atoll::Config& config) { config.log = log; });
  } catch (const atoll::Error&) {
    // The error is ignored here, because `failures` already holds the error of each rank.
  }
  return failures;
}

std::vector<std::string> failures_of_job(int ranks, const train::RunOptions& options) {
  return failures_of(ranks, [&](atoll::World& world) {
    discard_checkpoints(world, options);
    train::run(world, options);
  });
}

void check_refused(int ranks, const train::RunOptions& options,
                   const std::vector<std::string>& parts) {
  for (const std::string& failure : failures_of_job(ranks, options)) {
    CAPTURE(failure);
    CHECK(failure.find('\n') == failure.npos);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(failure.find(part) != failure.npos);
    }
  }
}

std::vector<std::string> Told::with(std::string_view part) const {
  std::vector<std::string> found;
  std::ranges::copy_if(lines, std::back_inserter(found),
                       [&](const std::string& line) { return line.find(part) != line.npos; });
  return found;
}

Told listen(const train::RunOptions& options, const std::string& log,
            const std::function<void(std::string_view)>& on_line) {
  Told told;
  std::mutex mutex;
  atoll::log::set_sink([&](atoll::log::Level, std::string_view text) {
    const std::lock_guard lock(mutex);
    told.lines.emplace_back(text);
    if (on_line) on_line(text);
  });
  const auto run = [&](atoll::World& world) {
    auto result = train::run(world, options);
    if (world.rank() == 0) told.steps = std::move(result.steps);
  };
  told.failures = failures_of(2, run, log);
  atoll::log::set_sink(nullptr);
  return told;
}

Told run_and_listen(const train::RunOptions& options) {
  Told told = listen(options, "info");
  REQUIRE(told.failures == std::vector<std::string>(2));
  return told;
}

double distance(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (const auto& [name, values] : a) {
    const auto& others = b.at(name);
    REQUIRE(values.size() == others.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(values[i]), y = static_cast<double>(others[i]);
      difference += (x - y) * (x - y);
      size += y * y;
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

CurveDistance distance(const std::vector<train::StepRecord>& a,
                       const std::vector<train::StepRecord>& b) {
  REQUIRE(a.size() == b.size());
  CurveDistance worst;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].step == b[i].step);
    REQUIRE(std::isfinite(a[i].loss));
    worst.loss = std::max(worst.loss, relative(a[i].loss, b[i].loss));
    worst.grad_norm = std::max(worst.grad_norm, relative(a[i].grad_norm, b[i].grad_norm));
  }
  return worst;
}

void check_ranks_agree(const std::vector<RankResult>& ranks) {
  for (const RankResult& rank : ranks) {
    const CurveDistance apart = distance(rank.run.steps, ranks[0].run.steps);
    CHECK(apart.loss == 0);
    CHECK(apart.grad_norm == 0);
    // Compared here, because a CHECK of the weights would print every weight.
    const bool same_weights = rank.weights == ranks[0].weights;
    CHECK(same_weights);
    for (const RankResult& other : ranks) {
      const bool same_shards = other.shards == rank.shards;
      CHECK((same_shards || other.shard_index != rank.shard_index));
    }
  }
}

std::string small_model_json(bool tied) {
  train::ModelConfig model;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 160;
  model.vocab = 259;  // the tokens of the bytes tokenizer: 256 bytes, bos, eos and pad
  model.max_seq = 256;
  model.tied = tied;
  return train::hf_config_json(model, "float32");
}

train::RunOptions plain_run(const std::filesystem::path& folder, bool tied) {
  train::RunOptions options;
  const auto model = folder / (tied ? "tied.json" : "small.json");
  std::ofstream(model) << small_model_json(tied);
  options.model = model.string();
  options.out = (folder / "out").string();
  options.samples = 16;
  options.seq = 128;
  options.global_batch = 2;
  options.steps = 3;
  options.lr = 1e-3;  // also for a run that starts from weights
  options.dtype = "f32";
  options.threads = 1;
  options.save_checkpoint = false;
  options.quiet = true;
  return options;
}

train::RunOptions small_run(const std::filesystem::path& folder) {
  train::RunOptions options = plain_run(folder);
  options.strategy = "full_shard";
  options.mesh = "1x2";
  options.save_checkpoint = true;
  return options;
}

std::string prime_model_json() {
  train::ModelConfig model;
  model.layers = 2;
  model.hidden = 67;
  model.heads = 3;
  model.kv_heads = 1;
  model.head_dim = 24;
  model.ffn = 157;
  // The bytes tokenizer has 259 tokens: 256 bytes, bos, eos and pad. Four more make the size prime.
  model.vocab = 263;
  model.max_seq = 256;
  model.tied = true;
  return train::hf_config_json(model, "float32");
}

}  // namespace train_test
