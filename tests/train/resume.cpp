// Tests that a run resumes on any number of ranks, that weights survive export and import, and that
// every rank refuses a --resume that leads to no checkpoint. Damaged files of a checkpoint are in
// tests/unit/checkpoint, and runs that are killed while they save in saving.py.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "job.hpp"
#include "model/params.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

namespace {

constexpr std::int64_t saved_at = 6, last_step = 12;

train::RunOptions base(const TemporaryFolder& folder, bool tied = false) {
  train::RunOptions options = plain_run(folder.path(), tied);
  options.samples = 40;  // so few samples that an epoch ends in the resumed part
  options.global_batch = 5;
  options.lr = 3e-4;
  options.warmup_steps = 8;  // long enough that the learning rate still warms up after resuming
  options.steps = last_step;
  return options;
}

train::RunOptions shaped(train::RunOptions options, const std::string& strategy,
                         const std::string& mesh) {
  options.strategy = strategy;
  options.mesh = mesh;
  return options;
}

// Trains `saved_at` steps on 4 ranks with full_shard and saves a checkpoint. Returns the
// checkpoint's folder.
fs::path save(train::RunOptions options) {
  options = shaped(options, "full_shard", "2x2");
  options.steps = saved_at;
  options.save_checkpoint = true;
  run_job(4, options);
  return fs::path(options.out) / "checkpoint";
}

std::vector<train::StepRecord> tail(const RankResult& result) {
  const auto& steps = result.run.steps;
  return {steps.begin() + saved_at, steps.end()};
}

void check_resumes(const train::RunOptions& options) {
  const auto whole = run_job(4, shaped(options, "full_shard", "2x2")).front();
  auto resumed = options;
  resumed.resume = save(options).string();
  const auto check = [&](int ranks, const std::string& strategy, const std::string& mesh) {
    const auto result = run_job(ranks, shaped(resumed, strategy, mesh)).front();
    REQUIRE(result.run.steps.size() == last_step - saved_at);
    REQUIRE(result.run.steps.front().step == saved_at + 1);
    const auto curve = distance(result.run.steps, tail(whole));
    const double weights = distance(result.weights, whole.weights);
    MESSAGE(options.optimizer << ", resumed on " << ranks << " ranks, " << strategy << ": losses "
                              << curve.loss << ", gradient norms " << curve.grad_norm
                              << ", weights " << weights);
    CHECK(curve.loss <= 1e-6);
    CHECK(curve.grad_norm <= 1e-5);
    CHECK(weights <= 1e-6);
    return result.weights == whole.weights;
  };
  check(1, "no_shard", "1x1");
  check(2, "no_shard", "2x1");
  check(3, "full_shard", "1x3");  // shards on three ranks have other boundaries than on four
  check(4, "hybrid_shard", "2x2");
  const bool same_bits = check(4, "full_shard", "2x2");
  CHECK(same_bits);
}

// Returns options for one step of SGD with learning rate 0, which keeps the initial weights.
train::RunOptions still(train::RunOptions options) {
  options.optimizer = "sgd";
  options.lr = 0;
  options.clip = 0;
  options.steps = 1;
  return options;
}

// Creates a Hugging Face model folder without weights.
fs::path weights_folder(const TemporaryFolder& folder, bool tied) {
  fs::create_directories(folder.path() / "hf");
  folder.write("hf/config.json", small_model_json(tied));
  return folder.path() / "hf";
}

void export_from_four_ranks(const train::RunOptions& options, const fs::path& file,
                            atoll::DType dtype) {
  run_job(4, shaped(options, "hybrid_shard", "2x2"), [&](fsdp::Engine& engine) {
    fsdp::export_weights(file, engine, dtype,
                         [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                           return train::hf_name(unit.name(), param.name);
                         });
  });
}

}  // namespace

TEST_CASE("a run resumes on any number of ranks: AdamW") {
  const TemporaryFolder folder;
  check_resumes(base(folder));
}

TEST_CASE("a run resumes on any number of ranks: a tied head, SGD") {
  const TemporaryFolder folder;
  auto options = base(folder, true);
  options.optimizer = "sgd";
  check_resumes(options);
}

TEST_CASE("the same bits, resumed: bf16 with its f32 masters, moments in bf16, packed rows") {
  const TemporaryFolder folder;
  const auto check_same_bits = [&](const char* what, const auto& change) {
    CAPTURE(what);
    auto options = base(folder);
    change(options);
    const auto whole = run_job(4, shaped(options, "full_shard", "2x2")).front();
    auto resumed = shaped(options, "full_shard", "2x2");
    resumed.resume = save(options).string();
    const bool same = run_job(4, resumed).front().weights == whole.weights;
    CHECK(same);
  };
  check_same_bits("bf16", [](train::RunOptions& options) { options.dtype = "bf16"; });
  check_same_bits("moments", [](train::RunOptions& options) { options.moments = "bf16"; });
  check_same_bits("packed", [](train::RunOptions& options) { options.pad_to = "pack"; });
}

TEST_CASE("weights go to a file and come back the same, on any number of ranks") {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const fs::path hf = weights_folder(folder, tied);
    auto options = shaped(base(folder, tied), "hybrid_shard", "2x2");
    options.export_weights = (hf / "model.safetensors").string();
    const auto trained = run_job(4, options).front().weights;
    auto start = still(base(folder));
    start.init = hf.string();
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      start.strategy = "full_shard";
      const bool same = run_job(ranks, start).front().weights == trained;
      CHECK(same);
    }
    // `init` accepts the path of a single file with config.json in the same folder.
    start.init = options.export_weights;
    const bool same = run_job(1, start).front().weights == trained;
    CHECK(same);
  }
}

TEST_CASE("weights in 16 bits come back rounded") {
  const TemporaryFolder folder;
  const fs::path hf = weights_folder(folder, false);
  auto options = base(folder);
  options.steps = 3;
  const auto trained = run_job(4, shaped(options, "hybrid_shard", "2x2")).front().weights;
  auto start = still(base(folder));
  start.init = hf.string();
  const auto error_in = [&](atoll::DType dtype) {
    export_from_four_ranks(options, hf / "model.safetensors", dtype);
    return distance(run_job(2, start).front().weights, trained);
  };
  const double bf16 = error_in(atoll::DType::bf16), f16 = error_in(atoll::DType::f16);
  CHECK(bf16 > 1e-4);  // a bf16 mantissa has 8 bits, so rounding errors are larger than this
  CHECK(bf16 < 4e-3);
  CHECK(f16 > 1e-5);  // an f16 mantissa has 11 bits, so its errors are smaller than those of bf16
  CHECK(f16 < 5e-4);
}

TEST_CASE("--resume: a folder without a checkpoint is refused on every rank") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const fs::path checkpoint = save(options), damaged = folder.path() / "damaged";
  const std::string out = options.out;
  options.out += "-resumed";
  options.resume = damaged.string();
  check_refused(2, options, {"--resume " + damaged.string() + ": no such folder"});
  fs::create_directories(damaged);
  check_refused(2, options, {damaged.string(), "not a checkpoint: it has no index.json"});
  fs::copy(checkpoint, damaged);
  const std::string shard = "shard-00002-of-00004.safetensors";
  fs::remove(damaged / shard);
  check_refused(2, options, {shard, "open"});
}

TEST_CASE("--resume: a checkpoint past --steps, other ranks and the flags of its run") {
  const TemporaryFolder folder;
  auto options = small_run(folder.path());
  options.steps = 4;
  options.config_text = "steps = 4\n";
  run_job(1, shaped(options, "full_shard", "1x1"));
  options.resume = (fs::path(options.out) / "checkpoint").string();
  options.steps = 3;
  check_refused(2, options, {"the checkpoint has 4 steps, more than --steps 3: raise --steps"});
  // A file of its own keeps the flags of the resumed run, beside those of the first start.
  options.steps = 5;
  options.config_text = "steps = 5\n";
  options.resume = options.out;  // the results folder stands for its newest checkpoint
  const Told told = run_and_listen(options);
  options.resume += "/checkpoint";
  CHECK(told.says("`atoll-train export " + options.out + " FOLDER` writes the model"));
  CHECK(told.says("resuming " + options.resume + " after step 4, on 2 ranks (1 before)"));
  CHECK(TemporaryFolder::read(fs::path(options.out) / "config.toml") == "steps = 4\n");
  CHECK(TemporaryFolder::read(fs::path(options.out) / "config-resumed.toml") == "steps = 5\n");
  // The error suggests OUT/config.toml first, unless the run was started with that file.
  options.seed = 7;
  options.steps = 9;
  const std::string config = options.out + "/config.toml";
  check_refused(2, options,
                {": start it with --config " + config + ", which has the flags of",
                 "; or use the same, or add --resume-with-changes "});
  options.config_file = config;
  check_refused(2, options, {", in the checkpoint 0: use the same, or add --resume-with-changes "});
}

TEST_CASE("--init RUN and --model RUN start from the weights of a run, with any optimizer") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const fs::path checkpoint = save(options);
  auto resumed = options;
  resumed.steps = saved_at;
  resumed.resume = checkpoint.string();
  const auto trained = run_job(1, resumed).front().weights;
  auto start = still(options);
  start.out += "-started";
  const auto check_same = [&](int ranks) {
    const bool same = run_job(ranks, start).front().weights == trained;
    CHECK(same);
  };
  start.init = options.out;
  check_same(1);
  start.init.clear();
  start.model = checkpoint.string();
  start.ema = 0.9;
  check_same(2);
  start.optimizer = "muon";
  check_same(3);
  start.init = "none";
  const bool same = run_job(1, start).front().weights == trained;
  CHECK_FALSE(same);
  // Adapters, averages and Muon need the model as a file.
  start.init = options.out;
  start.lora_rank = 2;
  const std::string how = ": write its model by `atoll-train export ";
  check_refused(2, start, {"(adapters need the model in Hugging Face's format)" + how});
  start.lora_rank = 0;
  start.save_checkpoint = true;
  run_job(1, start);
  start.init = start.out;
  start.out += "-again";
  check_refused(2, start, {"(beside the weights it has states of an average or of Muon)" + how});
}
