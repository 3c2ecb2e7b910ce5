// Tests of the checkpoints of a run: which are kept, which one --resume auto finds, and what a
// resumed run must share with the run that saved.
#include "loop/checkpoints.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/index.hpp"
#include "job.hpp"
#include "report/files.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using Names = std::vector<std::string>;

namespace {

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = small_run(folder.path());
  options.warmup_steps = 2;
  options.steps = 4;
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

  // A resumed run without a step to do keeps the record of the steps.
  const std::string record = TemporaryFolder::read(fs::path(options.out) / "run_args.json");
  auto idle = options;
  idle.micro_batch = 2;
  told = run_and_listen(idle);
  CHECK(told.says("already has all 6 steps"));
  CHECK(TemporaryFolder::read(fs::path(options.out) / "run_args.json") == record);

  // A byte of the newest checkpoint is flipped, so the run resumes from the one before.
  const fs::path newest = fs::path(options.out) / "checkpoints" / "step-00000006";
  std::string shard = TemporaryFolder::read(newest / "shard-00001-of-00002.safetensors");
  shard[shard.size() / 2] ^= 1;
  folder.write("out/checkpoints/step-00000006/shard-00001-of-00002.safetensors", shard);
  told = run_and_listen(options);
  CHECK(told.steps.size() == 2);
  CHECK(told.says("skipped a checkpoint that is not whole: "));
  CHECK(told.says("step-00000004 after step 4"));

  // An index with other contents makes a checkpoint damaged, too.
  folder.write("out/checkpoints/step-00000006/index.json", R"({"a": 1})");
  told = run_and_listen(options);
  CHECK(told.says("skipped a checkpoint that is not whole: "));
  CHECK(told.says("step-00000004 after step 4"));
}

TEST_CASE("a new run refuses the folder of an earlier one with checkpoints") {
  const TemporaryFolder folder;
  auto options = base(folder);
  run_job(2, options);
  const auto lines = [&] { return TemporaryFolder::read(fs::path(options.out) / "steps.jsonl"); };
  const std::string before = lines();
  const auto told = [&](const train::RunOptions& run) {
    const Names failures = listen(run, "error").failures;
    CHECK(failures[0] == failures[1]);
    return failures[0];
  };
  CHECK(
      holds(told(options), "the folder has the checkpoints of an earlier run: use another --out"));
  auto elsewhere = options;
  elsewhere.resume = "/nowhere";
  CHECK(holds(told(elsewhere), "of an earlier run, and --resume /nowhere is no part of it: use"));
  auto saves_nothing = options;
  saves_nothing.save_checkpoint = false;
  CHECK(holds(told(saves_nothing), "the checkpoints of an earlier run"));
  CHECK(lines() == before);
  CHECK(checkpoints_of(options) == Names{"step-00000004"});
  CHECK_FALSE(fs::exists(fs::path(options.out) / "run.lock"));
  auto planned = options;
  planned.dry_run = true;
  CHECK(told(planned).empty());
  auto longer = options;
  longer.resume = "auto";
  longer.steps = 5;
  CHECK(told(longer).empty());
}

TEST_CASE("a new run keeps the results of an earlier one without checkpoints") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.save_checkpoint = false;
  options.steps = 1;
  const fs::path out = options.out;
  fs::create_directories(out);
  folder.write("out/config.toml", "");  // no run has written here
  CHECK_FALSE(run_and_listen(options).says("an earlier run"));
  const std::string before = TemporaryFolder::read(out / "steps.jsonl");
  for (const std::string name : {"earlier-1", "earlier-2"}) {
    CHECK(run_and_listen(options).says(
        "has the results of an earlier run without checkpoints: they are now in " +
        (out / name).string()));
    CHECK(fs::exists(out / name / "metrics.json"));
    CHECK(fs::exists(out / name / "run_args.json"));
  }
  CHECK(TemporaryFolder::read(out / "earlier-1" / "steps.jsonl") == before);
  CHECK(fs::exists(out / "steps.jsonl"));
}

TEST_CASE("a run that starts anew, or from another folder, does not mix with an earlier one") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 2;
  auto other = options;
  other.out = (folder.path() / "other").string();
  run_job(2, other);
  // Results without a checkpoint are in OUT, and --resume auto finds nothing there.
  options.save_checkpoint = false;
  run_job(2, options);
  const fs::path out = options.out;
  const std::string before = TemporaryFolder::read(out / "steps.jsonl");
  options.resume = "auto";
  CHECK(run_and_listen(options).says("they are now in " + (out / "earlier-1").string()));
  CHECK(TemporaryFolder::read(out / "earlier-1" / "steps.jsonl") == before);
  // A run that resumes another folder's checkpoint keeps no line of the earlier run.
  options.resume = other.out + "/checkpoint";
  options.steps = 3;
  options.save_checkpoint = true;
  CHECK(run_and_listen(options).says("they are now in " + (out / "earlier-2").string()));
  const std::string lines = TemporaryFolder::read(out / "steps.jsonl");
  CHECK(std::ranges::count(lines, '\n') == 1);
  CHECK(lines.find("\"step\":3") != lines.npos);
  // The run has saved a checkpoint, which another run must not mix with its own.
  check_refused(2, options, {"--out " + options.out + ": the folder has the checkpoints of an"});
  options.resume = options.out + "/checkpoint";
  options.steps = 4;
  run_job(2, options);
  // The checkpoints of a run may lie on another disk.
  fs::rename(out / "checkpoints", folder.path() / "disk");
  fs::create_directory_symlink(folder.path() / "disk", out / "checkpoints");
  for (const std::string resume : {"out/checkpoint", "disk/step-00000005"}) {
    options.resume = (folder.path() / resume).string();
    ++options.steps;
    CHECK(run_job(2, options).front().run.steps.size() == 1);
  }
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
  // `checkpoint` stays a folder, because a save replaces only a link.
  CHECK(fs::exists(out / "checkpoint" / "index.json"));
  CHECK_FALSE(fs::is_symlink(out / "checkpoint"));
  CHECK(checkpoints_of(options) == Names{"step-00000004"});
}

TEST_CASE("--resume refuses another training, unless the changes are listed") {
  const TemporaryFolder folder;
  auto options = base(folder);
  // Reads a file, because generated data would change with the seed.
  options.data = (fs::path(ATOLL_TEST_SOURCE_DIR) / "tests/train/alpaca.json").string();
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
  refused([](Options& o) { o.samples = 12; }, "--eval-split or the tokenizer differ): \"", "data");
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

  // The state of AdamW is of no use to SGD, whatever may change.
  for (const Names& allowed : {Names{}, Names{"optimizer"}}) {
    auto other = options;
    other.optimizer = "sgd";
    other.resume_with_changes = allowed;
    CHECK(holds(refusal(other), "the checkpoint has the state of --optimizer adamw, with which"));
  }

  options.seed = 7;
  options.global_batch = 4;
  CHECK(holds(refusal(options), "use the same, or add --resume-with-changes global_batch,seed"));
  options.resume_with_changes = {"data", "weather"};
  CHECK(holds(refusal(options), "--resume-with-changes weather: use one of data, seed, "));
}

TEST_CASE("--resume refuses other adapters") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.lora_rank = 4;
  options.lora_alpha = 8;
  options.lora_targets = {"q_proj"};
  run_job(2, options);
  options.resume = (fs::path(options.out) / "checkpoint").string();
  options.save_checkpoint = false;
  options.steps = 5;
  const auto refused = [&](const auto& change, std::string_view what) {
    auto changed = options;
    change(changed);
    CHECK(holds(refusal(changed), what));
    changed.resume_with_changes = {"model", "frozen"};
    return changed;
  };
  using Options = train::RunOptions;
  const auto scaled = refused([](Options& o) { o.lora_alpha = 800; },
                              "model: lora_alpha is 800.0, in the checkpoint 8.0");
  CHECK(run_job(2, scaled).front().run.steps.size() == 1);
  refused([](Options& o) { o.lora_rank = 2; }, "model: lora_rank is 2, in the checkpoint 4");
  refused([](Options& o) { o.lora_targets = {"v_proj"}; },
          "model: lora_targets is [\"v_proj\"], in the checkpoint [\"q_proj\"]");
  refused(
      [](Options& o) {
        o.lora_rank = 0;
        o.lora_alpha = 0;
        o.lora_targets.clear();
      },
      ": the checkpoint was trained with --lora-rank 4: add it");
  CHECK(run_job(2, options).front().run.steps.size() == 1);

  auto whole = base(folder);
  run_job(2, whole);
  options.resume = (fs::path(whole.out) / "checkpoint").string();
  CHECK(holds(refusal(options), "the checkpoint was trained without --lora-rank: write its"));
}

TEST_CASE("what killed runs have left is removed at the start, and named") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 1;
  options.save_checkpoint = false;
  options.export_weights = (folder.path() / "model").string();
  const auto make = [&](const std::string& name, int minutes) {
    const fs::path path = folder.path() / name;
    fs::create_directories(path.parent_path());
    folder.write(name, "half");
    const auto before = fs::file_time_type::clock::now() - std::chrono::minutes(minutes);
    fs::last_write_time(path, before);
    if (name.find("step-") != name.npos) fs::last_write_time(path.parent_path(), before);
    return path;
  };
  const std::string shard = "/shard-00000-of-00002.safetensors";
  const std::vector<fs::path> gone{
      make("out/checkpoints/step-00000009.partial" + shard, 2).parent_path(),
      make("out/metrics.json.6199f86f-4026531836-1.tmp", 61),
      make("model/config.json.0123-45-6.tmp", 61),
      make("model/model.safetensors.0123456789abcdef.partial", 61)};
  const std::vector<fs::path> kept{make("out/checkpoints/step-00000008.partial" + shard, 0),
                                   make("out/checkpoints/step-00000007.old" + shard, 2),
                                   make("model/tokenizer.json.6199f86f-4026531836-1.tmp", 2),
                                   make("out/notes.txt.0123-45-6.tmp", 61),
                                   make("out/metrics.json.tmp", 61),
                                   make("model/model.safetensors.00000000ffffffff.partial", 2),
                                   make("model/model.partial", 61)};
  auto told = run_and_listen(options);
  for (const fs::path& path : gone) {
    CAPTURE(path);
    CHECK_FALSE(fs::exists(path));
    CHECK(told.says(path.string()));
  }
  for (const fs::path& path : kept) {
    CAPTURE(path);
    CHECK(fs::exists(path));
  }
  const std::string_view text = "removed what a killed run has left: ";
  CHECK(told.with(text).size() == 1);
  told = run_and_listen(options);
  CHECK_FALSE(told.says(text));
}

TEST_CASE("Muon: one line says that each checkpoint stops training") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.optimizer = "muon";
  options.steps = 2;
  const std::string_view text = "--optimizer muon: training waits for each checkpoint";
  CHECK_FALSE(run_and_listen(options).says(text));  // only the last one, which always waits
  options.checkpoint_every = 1;
  options.out += "-2";
  CHECK(run_and_listen(options).says(text));
}
