// Tests of the checkpoints of a run: which are kept, which one --resume auto finds, and what a
// resumed run must share with the run that saved.
#include "loop/checkpoints.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../unit/train_data_temporary.hpp"
#include "atoll/log.hpp"
#include "fsdp/checkpoint_index.hpp"
#include "job.hpp"
#include "thread_ranks.hpp"

using namespace train_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using Names = std::vector<std::string>;

namespace {

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options;
  options.model = folder.write("small.json", small_model_json(false)).string();
  options.out = (folder.path() / "out").string();
  options.samples = 16;
  options.seq = 128;
  options.global_batch = 2;
  options.lr_warmup = 2;
  options.steps = 4;
  options.threads = 1;
  options.strategy = "full_shard";
  options.mesh = "1x2";
  options.quiet = true;
  return options;
}

Names checkpoints_of(const train::RunOptions& options) {
  Names names;
  for (const auto& entry : fs::directory_iterator(fs::path(options.out) / "checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// The log and the steps of a job.
struct Told {
  Names lines;
  std::vector<train::StepRecord> steps;
  bool says(std::string_view text) const {
    return std::ranges::any_of(lines,
                               [&](const auto& line) { return line.find(text) != line.npos; });
  }
};

Told run_and_listen(const train::RunOptions& options) {
  Told told;
  std::mutex mutex;
  atoll::log::set_sink([&](atoll::log::Level, std::string_view text) {
    const std::lock_guard lock(mutex);
    told.lines.emplace_back(text);
  });
  atoll_test::run_thread_ranks(
      2,
      [&](atoll::World& world) {
        auto result = train::run(world, options);
        if (world.rank() == 0) told.steps = std::move(result.steps);
      },
      [](atoll::Config& config) { config.log = "info"; });
  atoll::log::set_sink(nullptr);
  return told;
}

std::string refusal(const train::RunOptions& options) {
  const auto failures = failures_of_job(2, options);
  CHECK(failures[0] == failures[1]);
  return failures[0];
}

bool holds(const std::string& text, std::string_view part) {
  CAPTURE(text);
  return text.find(part) != text.npos;
}

}  // namespace

TEST_CASE("checkpoints: the newest are kept, and those of every M-th step") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 7;
  options.checkpoint_every = 1;
  options.keep_last = 2;
  options.keep_every = 3;
  run_job(2, options);
  CHECK(checkpoints_of(options) == Names{"step-00000003", "step-00000006", "step-00000007"});
  CHECK(fs::read_symlink(fs::path(options.out) / "checkpoint") == "checkpoints/step-00000007");

  const TemporaryFolder other;
  options = base(other);
  options.checkpoint_every = 1;
  options.keep_last = 0;
  run_job(2, options);
  CHECK(checkpoints_of(options).size() == 4);
}

TEST_CASE("--resume auto: the checkpoint that was saved last, or a new run") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.resume = "auto";
  options.checkpoint_every = 2;
  options.keep_last = 0;
  auto told = run_and_listen(options);
  CHECK(told.steps.size() == 4);
  CHECK(told.says("--resume auto: no checkpoint in " + options.out + ", so the run starts anew"));
  options.steps = 6;
  told = run_and_listen(options);
  CHECK(told.steps.size() == 2);
  CHECK(told.says("step-00000004 after step 4"));

  // A flipped byte in the newest checkpoint: the one before counts.
  const fs::path newest = fs::path(options.out) / "checkpoints" / "step-00000006";
  std::string shard = TemporaryFolder::read(newest / "shard-00001-of-00002.safetensors");
  shard[shard.size() / 2] ^= 1;
  folder.write("out/checkpoints/step-00000006/shard-00001-of-00002.safetensors", shard);
  told = run_and_listen(options);
  CHECK(told.steps.size() == 2);
  CHECK(told.says("skipped a checkpoint that is not whole: "));
  CHECK(told.says("step-00000004 after step 4"));

  // A run that started anew in the same folder saved its first steps last.
  auto anew = options;
  anew.resume.clear();
  anew.steps = 1;
  run_job(2, anew);
  told = run_and_listen(options);
  CHECK(told.says("step-00000001 after step 1"));
}

TEST_CASE("--resume auto: no checkpoint is whole") {
  const TemporaryFolder folder;
  auto options = base(folder);
  run_job(2, options);
  folder.write("out/checkpoints/step-00000004/index.json", "{\"format\": ");
  options.resume = "auto";
  CHECK(holds(refusal(options), "index.json"));
}

TEST_CASE("--resume auto: the folder of an earlier version") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 2;
  run_job(2, options);
  const fs::path out = options.out;
  fs::remove(out / "checkpoint");
  fs::rename(out / "checkpoints" / "step-00000002", out / "checkpoint");
  // Earlier versions recorded only the step.
  const std::string index = TemporaryFolder::read(out / "checkpoint" / "index.json");
  auto json = nlohmann::json::parse(index);
  const auto whole = fsdp::parse_index(index, "index.json");
  json["extra"] = {{"step", "2"}};
  folder.write("out/checkpoint/index.json", fsdp::index_text(json, whole.save, whole.files));
  options.resume = "auto";
  options.steps = 4;
  const auto told = run_and_listen(options);
  CHECK(told.steps.size() == 2);
  CHECK(
      told.says("the checkpoint does not record data, frozen, global_batch, model, optimizer, "
                "seed, so they are not compared"));
  // The folder stays what it was, because it is not a link.
  CHECK(fs::exists(out / "checkpoint" / "index.json"));
  CHECK_FALSE(fs::is_symlink(out / "checkpoint"));
  CHECK(checkpoints_of(options) == Names{"step-00000004"});
}

TEST_CASE("--resume refuses another training, unless the changes are listed") {
  const TemporaryFolder folder;
  auto options = base(folder);
  // Generated data would change with the seed.
  options.data = (fs::path(__FILE__).parent_path() / "alpaca.json").string();
  options.seq = 256;
  run_job(2, options);
  options.resume = (fs::path(options.out) / "checkpoint").string();
  options.save_checkpoint = false;
  options.steps = 5;
  const auto refused = [&](const auto& change, std::string_view what, const std::string& name) {
    auto changed = options;
    change(changed);
    const std::string text = refusal(changed);
    CHECK(text.starts_with("--resume " + options.resume +
                           ": the run differs from that of the checkpoint: "));
    CHECK(holds(text, what));
    CHECK(text.ends_with("or add --resume-with-changes " + name));
    changed.resume_with_changes = {name};
    CHECK(run_job(2, changed).front().run.steps.size() == 1);
  };
  using Options = train::RunOptions;
  refused([](Options& o) { o.seed = 7; }, ": seed: 7, in the checkpoint 0: ", "seed");
  refused([](Options& o) { o.global_batch = 4; }, "global_batch: 4, in the checkpoint 2",
          "global_batch");
  refused([](Options& o) { o.samples = 12; }, ": data: \"", "data");
  refused([](Options& o) { o.weight_decay = 0.1; },
          "optimizer: weight_decay is 0.1, in the checkpoint 0", "optimizer");
  refused([](Options& o) { o.freeze = {"*norm.weight"}; },
          "frozen: 5 parameters, in the checkpoint 0", "frozen");
  std::string model = small_model_json(false);
  const auto at = model.find("10000");
  REQUIRE(at != model.npos);
  folder.write("theta.json", model.replace(at, 5, "20000"));
  refused([&](Options& o) { o.model = (folder.path() / "theta.json").string(); },
          "model: ", "model");

  options.seed = 7;
  options.global_batch = 4;
  CHECK(holds(refusal(options), "use the same, or add --resume-with-changes global_batch,seed"));
  options.resume_with_changes = {"data", "weather"};
  CHECK(refusal(options) ==
        "--resume-with-changes weather: use names of data, seed, global_batch, optimizer, frozen, "
        "model");
}

TEST_CASE("--resume: a checkpoint past --steps, and --init beside it") {
  const TemporaryFolder folder;
  auto options = base(folder);
  run_job(2, options);
  options.resume = (fs::path(options.out) / "checkpoint").string();
  options.steps = 3;
  CHECK(refusal(options) == "--resume " + options.resume +
                                ": the checkpoint has 4 steps, more than --steps 3: raise --steps, "
                                "or resume an earlier checkpoint");
  options.init = folder.path().string();
  CHECK(refusal(options) == "--init " + options.init +
                                ": the checkpoint of --resume has the weights; remove one of the "
                                "two flags");
}
