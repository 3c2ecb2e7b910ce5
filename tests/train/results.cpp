// Tests of the files that a run writes: metrics.json, run_args.json, steps.jsonl and a checkpoint.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "atoll/mesh.hpp"
#include "job.hpp"
#include "loop/fabric_check.hpp"
#include "loop/setup.hpp"
#include "loop/strategy.hpp"
#include "model/hf_config.hpp"
#include "thread_ranks.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int steps = 8;

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path());
  options.out = (folder.path() / "results" / "run").string();
  options.run_name = "a-run";
  options.samples = 40;
  options.global_batch = 6;
  options.steps = steps;
  options.untimed_steps = 3;
  options.mesh = "2x2";
  options.save_checkpoint = true;
  return options;
}

json read_json(const fs::path& file) { return json::parse(TemporaryFolder::read(file)); }

std::vector<json> read_lines(const fs::path& file) {
  std::vector<json> lines;
  std::istringstream in(TemporaryFolder::read(file));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

void check_positive(const json& object, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    CAPTURE(name);
    REQUIRE(object.contains(name));
    REQUIRE(object[name].is_number());
    CHECK(object[name].get<double>() > 0);
  }
}

void check_fraction(const json& object, const std::string& name) {
  CAPTURE(name);
  REQUIRE(object.contains(name));
  REQUIRE(object[name].is_number());
  CHECK(object[name].get<double>() >= 0);
  CHECK(object[name].get<double>() <= 1);
}

void check_metrics(const json& metrics, const train::RunResult& run) {
  check_positive(metrics, {"wall_time_s", "approx_tokens_per_rank", "approx_tokens_per_s_per_rank",
                           "tokens_per_s", "steps_per_s", "samples_per_s", "valid_tokens_per_s",
                           "padded_tokens_per_s", "tflops", "tflops_6n", "mfu", "mfu_6n",
                           "peak_flops_per_rank", "peak_memory_bytes", "parameters", "loss_first",
                           "loss_last", "loss_min"});
  for (const auto* name : {"exposed_comm_fraction", "compute_fraction", "padding_fraction"}) {
    check_fraction(metrics, name);
  }
  check_positive(metrics, {"between_steps_s", "overall_tokens_per_s"});
  CHECK(metrics["overall_tokens_per_s"] < metrics["tokens_per_s"]);
  check_positive(metrics, {"planned_memory_bytes", "proportional_memory_bytes"});
  const auto planned = metrics["planned_memory_bytes"].get<double>();
  CHECK(metrics["device_memory_bytes"].get<double>() == doctest::Approx(planned).epsilon(0.05));
  check_positive(metrics, {"compute_s", "communication_s", "exposed_s", "exposed_worst_s"});
  CHECK(metrics["exposed_worst_s"] >= metrics["exposed_s"]);
  CHECK(metrics["world_size"] == 4);
  CHECK(metrics["gpu0"].is_null());
  CHECK(metrics["bf16"] == false);
  // Other trainers write the key `torch` instead of `engine`.
  CHECK(metrics["engine"]["name"] == "atoll");
  CHECK(metrics["engine"]["version"].is_string());
  CHECK(metrics["dataset"] == "demo");
  CHECK(metrics["tokenizer"] == "bytes");
  CHECK(metrics["fsdp"] == (metrics["strategy"] != "no_shard"));
  CHECK(metrics["peak_source"] == "measured");
  CHECK(metrics["mfu_measured"] == metrics["mfu"]);
  CHECK(metrics["run_name"] == "a-run");
  CHECK(metrics["model"] == "small");
  CHECK(metrics["steps"] == steps);
  CHECK(metrics["untimed_steps"] == 3);
  CHECK(metrics["loss_first"].get<double>() == doctest::Approx(run.steps.front().loss));
  double sum = 0;
  for (const auto& step : run.steps) sum += step.loss;
  CHECK(metrics["loss_last"].get<double>() == doctest::Approx(sum / steps));
}

}  // namespace

TEST_CASE("a run writes its figures") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const std::vector<std::pair<std::string, std::string>> meshes{
      {"no_shard", "4x1"},   {"shard_optimizer", "1x4"}, {"shard_grad", "1x4"},
      {"full_shard", "1x4"}, {"hybrid_shard", "2x2"},    {"hybrid_shard_grad", "2x2"}};
  for (const auto& [strategy, mesh] : meshes) {
    CAPTURE(strategy);
    options.strategy = strategy;
    const auto ranks = run_job(4, options);
    const auto metrics = read_json(fs::path(options.out) / "metrics.json");
    check_metrics(metrics, ranks[0].run);
    CHECK(metrics["strategy"] == strategy);
    CHECK(metrics["mesh"] == mesh);
    CHECK(fs::exists(fs::path(options.out) / "checkpoint" / "index.json"));
  }
}

TEST_CASE("an automatic strategy reports its reason and depends on the memory") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.strategy = "auto";
  // A model with little padding of buckets, because estimates omit the padding.
  options.model = "mistral-tiny";
  options.data = "synthetic";  // generated data has enough samples for each step
  options.seq = 64;
  options.steps = 2;
  // Four micro batches, which favour a strategy that accumulates whole gradients.
  options.global_batch = 16;
  const auto chosen = [&](std::uint64_t limit) {
    options.memory_limit = limit;
    run_job(4, options);
    const auto args = read_json(fs::path(options.out) / "run_args.json");
    const auto metrics = read_json(fs::path(options.out) / "metrics.json");
    const auto strategy = args["strategy"].get<std::string>();
    CHECK(metrics["strategy"] == strategy);
    const auto why = args["strategy_reason"].get<std::string>();
    CHECK(why.starts_with(strategy + ": "));
    CHECK(why.find(" per rank") != std::string::npos);
    const auto planned = metrics["planned_memory_bytes"].get<std::uint64_t>();
    CHECK(planned <= limit);
    return std::pair(strategy, planned);
  };
  const auto [roomy, bytes] = chosen(std::uint64_t{1} << 34);
  const auto [tight, fewer] = chosen(bytes * 3 / 4);
  CHECK(roomy != tight);
  CHECK(fewer < bytes);
  // Frozen parameters need neither moments nor gradients, so the strategy that was chosen first
  // fits again.
  options.freeze = {"*mlp*", "*embed*", "*lm_head*"};
  CHECK(chosen(bytes * 3 / 4).first == roomy);
  options.freeze.clear();
  options.memory_limit = 1 << 16;
  check_refused(4, options, {"activations alone take "});
  options.strategy = tight;
  // This memory is too small for the plan of the strategy, even if the optimizer had no moments.
  options.memory_limit = bytes / 3;
  check_refused(4, options, {"seal: the plan needs more than "});
  options.memory_limit = fewer - 1;
  // This error shows the plan, so it has more lines.
  for (const std::string& failure : failures_of_job(4, options))
    CHECK(failure.find("the plan of " + tight + " is over ") != failure.npos);
}

TEST_CASE("strategies cannot use memory that the kernels hold") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.strategy = "auto";
  const auto model = train::read_hf_config(options.model);
  constexpr std::uint64_t room = std::uint64_t{1} << 34;
  const std::uint64_t activations = train::bytes_beside_engine(options, model, {.bytes = room});
  CHECK(train::bytes_beside_engine(options, model, {.bytes = room, .arithmetic = 1000}) ==
        activations + 1000);
  atoll_test::run_thread_ranks(4, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {2, 2});
    for (const bool held : {false, true}) {
      const auto choice = train::choose_strategy(
          {options, model, mesh, {.bytes = room, .arithmetic = held ? room : 0}}, 2);
      if (world.rank() == 0)
        CHECK(held == (choice.why.find("no strategy fits") != std::string::npos));
    }
  });
  options.memory_limit = activations + 5000;
  const auto engine =
      train::engine_options(options, model, {}, atoll::Device::cpu(), {.arithmetic = 1000});
  CHECK(engine.memory_bytes == 4000);
}

TEST_CASE("a run writes its arguments") {
  const TemporaryFolder folder;
  const auto options = base(folder);
  run_job(4, options);
  const auto args = read_json(fs::path(options.out) / "run_args.json");
  const auto expected = train::to_json(options);
  for (const auto& [name, value] : expected.items()) {
    CAPTURE(name);
    REQUIRE(args.contains(name));
    CHECK(args[name] == value);
  }
  CHECK(args["mesh"] == "2x2");
  CHECK(args["world_size"] == 4);
  CHECK(args["threads"] == 1);
}

TEST_CASE("flags that ranks compare, and that a resumed run must share") {
  using train::Use;
  train::RunOptions options;
  const json compared = train::to_json(options, Use::compared), saved = train::to_json(options);
  for (const char* flag : {"out", "run_name"}) {
    CHECK(compared.contains(flag));
    CHECK_FALSE(saved.contains(flag));
  }
  CHECK(saved.contains("threads"));
  CHECK_FALSE(compared.contains("threads"));
  CHECK(train::to_json(options, Use::early) ==
        json{{"dry_run", false}, {"evaluate", false}, {"show_data", 0}});
  const auto resumed = [&] { return train::to_json(options, Use::resumed); };
  CHECK(resumed().contains("beta1"));
  CHECK_FALSE(resumed().contains("momentum"));
  options.optimizer = "sgd";
  CHECK_FALSE(resumed().contains("beta1"));
  CHECK(resumed().contains("clip"));
  CHECK_FALSE(resumed().contains("lr"));
}

TEST_CASE("a run writes its curve, and a resumed run continues it") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 5;
  auto first = run_job(4, options).front().run.steps;
  options.steps = steps;
  options.resume = (fs::path(options.out) / "checkpoint").string();
  const auto second = run_job(2,
                              [&] {
                                auto fewer = options;
                                fewer.mesh = "1x2";
                                return fewer;
                              }())
                          .front()
                          .run.steps;
  first.insert(first.end(), second.begin(), second.end());
  const auto lines = read_lines(fs::path(options.out) / "steps.jsonl");
  REQUIRE(lines.size() == steps);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    CHECK(lines[i]["step"] == i + 1);
    CHECK(lines[i]["loss"].get<double>() == doctest::Approx(first[i].loss));
    CHECK(lines[i]["samples"] ==
          (i == 6 ? 4 : 6));  // of 40 samples, the last step of an epoch gets 4
    CHECK((lines[i]["learning_rate"] > 0) == (i > 0));  // the warm-up begins at 0
    check_positive(lines[i], {"loss", "grad_norm", "seconds", "tokens", "valid_tokens",
                              "tokens_per_s", "tflops", "mfu"});
    check_fraction(lines[i], "exposed_comm_fraction");
  }
}

TEST_CASE("the default row length depends on the data") {
  train::RunOptions options;
  CHECK(train::resolved(options).seq == 512);
  options.data = "synthetic:copy";
  CHECK(train::resolved(options).seq == 64);
  options.seq = 100;
  CHECK(train::resolved(options).seq == 100);
}

TEST_CASE("rates of links are judged where one is promised") {
  using train::FabricRate;
  const FabricRate good{"shard", 8, "all_gather", 320, 360},
      bad{"replicate", 3, "all_reduce", 46, 400}, unknown{"shard", 2, "all_gather", 3, 0};
  CHECK(train::to_line(good) ==
        "all_gather on axis shard (8 ranks): busbw 320 GB/s, 89 % of 360 GB/s");
  CHECK(train::to_line(unknown) ==
        "all_gather on axis shard (2 ranks): busbw 3 GB/s; the topology knows no rate to compare "
        "with");
  CHECK(train::fabric_failure({good, unknown}, 0.85) == "");
  CHECK(train::fabric_failure({}, 0.85) == "");
  CHECK(train::fabric_failure({good, bad}, 0.85)
            .starts_with(
                "--check-fabric 0.85: all_reduce on axis replicate (3 ranks): busbw 46 GB/s, "
                "12 % of 400 GB/s: look for adapters that no rank uses"));
  CHECK(train::fabric_failure({good}, 0.9) != "");
}
