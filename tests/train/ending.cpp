// Tests of the end of a run: files that cannot be written, --export, signals and --max-time.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fail.hpp"
#include "job.hpp"
#include "loop/results.hpp"
#include "loop/stopping.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

train::RunOptions base(const TemporaryFolder& folder) { return small_run(folder.path()); }

json read_json(const fs::path& file) { return json::parse(TemporaryFolder::read(file)); }

std::string refusal(const train::RunOptions& options) {
  const auto failures = failures_of_job(2, options);
  CHECK(failures[0].find('\n') == std::string::npos);
  CHECK(failures[1].find(failures[0]) != std::string::npos);
  return failures[0];
}

}  // namespace

TEST_CASE("what is written at the end is checked at the start") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("file", "");
  const auto refused = [&](const auto& change) {
    auto options = base(folder);
    change(options);
    const std::string text = refusal(options);
    // Nothing was trained.
    CHECK_FALSE(fs::exists(folder.path() / "out" / "steps.jsonl"));
    return text;
  };
  using Options = train::RunOptions;
  const std::string not_a_folder = file.string() + ": Not a directory";
  CHECK(refused([&](Options& o) { o.export_weights = (file / "model").string(); }) ==
        "--export: " + not_a_folder);
  CHECK(refused([&](Options& o) { o.export_weights = (file / "w.safetensors").string(); }) ==
        "--export: " + not_a_folder);
  CHECK(refused([&](Options& o) {
          o.trace = (file / "trace.json").string();
        }).starts_with("--trace: " + file.string()));
  CHECK(refused([&](Options& o) {
          o.out = (file / "out").string();
          o.save_checkpoint = false;
        }) == "--out: " + not_a_folder);
  CHECK(refused([&](Options& o) { o.out = (file / "out").string(); }).find(not_a_folder) !=
        std::string::npos);
  CHECK(refused([&](Options& o) { o.export_dtype = "int4"; }) ==
        "--export-dtype int4: use one of f32, bf16, f16");
  // An export of adapters writes other files than that of a model; a folder is in their way.
  const auto taken = [&](const std::string& name, std::int64_t lora_rank) {
    const fs::path in_the_way = folder.path() / ("with-" + name + "-folder") / name;
    fs::create_directories(in_the_way);
    CHECK(refused([&](Options& o) {
            o.lora_rank = lora_rank;
            o.export_weights = in_the_way.parent_path().string();
          }) == "--export: " + in_the_way.string() + ": Is a directory");
  };
  taken("adapter_model.safetensors", 2);
  taken("adapter_config.json", 2);
  taken("model.safetensors", 0);
  taken("tokenizer.json", 0);
}

TEST_CASE("ranks with different results folders or names are found at the start") {
  const TemporaryFolder folder;
  const auto failures = [&](const auto& change) {
    const auto texts = failures_of(2, [&](atoll::World& world) {
      auto options = base(folder);
      if (world.rank() == 1) change(options);
      train::run(world, options);
    });
    CHECK_FALSE(texts[0].empty());
    CHECK(texts[0] == texts[1]);
    CHECK_FALSE(fs::exists(folder.path() / "out"));
    return texts[0];
  };
  using Options = train::RunOptions;
  const std::string out = (folder.path() / "out").string();
  CHECK(failures([&](Options& o) { o.out += "-1"; }) ==
        "rank 1 has flags that differ from rank 0: out is \"" + out + "-1\", on rank 0 \"" + out +
            "\"");
  CHECK(failures([](Options& o) { o.run_name = "other"; }) ==
        "rank 1 has flags that differ from rank 0: run_name is \"other\", on rank 0 \"\"");
}

TEST_CASE("results: errors that all ranks share do not end the run, the others do") {
  auto world = atoll::World::single([] {
    atoll::Config config;
    config.log = "error";
    return config;
  }());
  using train::ErrorCode;
  train::Results results(world);
  const auto with = [](ErrorCode code) { return [code] { train::fail(code, "it broke"); }; };
  for (const auto code : {ErrorCode::invalid_argument, ErrorCode::not_found, ErrorCode::unsupported,
                          ErrorCode::mismatch, ErrorCode::io, ErrorCode::bad_data}) {
    CHECK_FALSE(results.attempt("checkpoint", with(code)));
  }
  for (const auto code : {ErrorCode::timeout, ErrorCode::peer_lost, ErrorCode::aborted,
                          ErrorCode::out_of_memory, ErrorCode::backend, ErrorCode::internal}) {
    CHECK(failure_of([&] { results.attempt("checkpoint", with(code)); }).code == code);
  }
  CHECK(failure_of([&] {
          results.finish("");
        }).says("the run is complete except for what could not be written: checkpoint: it broke"));
  CHECK(results.attempt("checkpoint", [] {}));
  results.finish("");
}

TEST_CASE("a checkpoint that the library refuses loses neither figures nor weights") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.export_weights = (folder.path() / "model").string();
  // No checkpoint, so the save fails: the library replaces only folders that it has written.
  fs::create_directories(fs::path(options.out) / "checkpoints" / "step-00000003" / "notes");
  const auto failures = failures_of_job(2, options);
  CHECK(failures[0] == failures[1]);
  CHECK(failures[0].starts_with(
      "the run is complete except for what could not be written: checkpoint: "));
  CHECK(read_json(fs::path(options.out) / "metrics.json")["steps"] == 3);
  CHECK(fs::exists(fs::path(options.export_weights) / "model.safetensors"));
}

TEST_CASE("--export: a folder with configuration, weights and tokenizer") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const fs::path source = fs::path(ATOLL_TEST_SOURCE_DIR) / "tests/train/tokenizer.model";
  const fs::path model = folder.path() / "model";
  options.export_weights = model.string();
  const auto trained = run_job(2, options).front().weights;
  CHECK(read_json(model / "config.json")["model_type"] == "mistral");
  CHECK(fs::exists(model / "model.safetensors"));
  CHECK_FALSE(fs::exists(model / "tokenizer.model"));  // the run used bytes

  auto start = base(folder);
  start.init = model.string();
  start.optimizer = "sgd";
  start.lr = 0;
  start.steps = 1;
  start.save_checkpoint = false;
  const bool same = run_job(2, start).front().weights == trained;
  CHECK(same);

  // A second export replaces the first, and the index of other files that is there.
  folder.write("model/model.safetensors.index.json", "{}");
  folder.write("special_tokens_map.json", "{}");
  auto again = base(folder);
  again.export_weights = model.string();
  again.dtype = "bf16";
  again.tokenizer = folder.path() / "pieces.model";
  fs::copy_file(source, again.tokenizer);
  again.model = "mistral-tiny";
  again.seq = 256;
  const auto bytes_of = [&](const std::string& dtype) {
    again.export_dtype = dtype;
    run_job(2, again);
    return fs::file_size(model / "model.safetensors");
  };
  const auto usual = bytes_of(""), bf16 = bytes_of("bf16"), f32 = bytes_of("f32");
  CHECK(usual == bf16);
  CHECK(f32 > 1.9 * static_cast<double>(bf16));
  CHECK_FALSE(fs::exists(model / "model.safetensors.index.json"));
  CHECK(TemporaryFolder::read(model / "tokenizer.model") == TemporaryFolder::read(source));
  CHECK(fs::exists(model / "special_tokens_map.json"));
}

// The script `stopped` sends signals to processes, and resumes their runs.
TEST_CASE("a run that a signal ends exports nothing, and needs a checkpoint") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 6;
  options.export_weights = (folder.path() / "model").string();
  train::request_stop();
  for (const RankResult& rank : run_job(2, options)) {
    CHECK(rank.run.stop == train::Stop::signal);
    CHECK(rank.run.steps.size() == 1);
  }
  CHECK_FALSE(fs::exists(options.export_weights));
  options.save_checkpoint = false;
  CHECK(refusal(options) ==
        "a signal has ended the run after step 1, and --no-checkpoint saves nothing");
  train::forget_stop();
}

TEST_CASE("durations") {
  const auto seconds = [](const std::string& text) {
    return train::parse_duration("--max-time", text);
  };
  CHECK(seconds("3h30m") == 12'600);
  CHECK(seconds("1d12h") == 129'600);
  CHECK(seconds("90s") == 90);
  CHECK(seconds("90") == 90);
  CHECK(seconds("1.5h") == 5'400);
  for (const std::string text : {"", "h", "3x", "3h30", "-1h", "0", "soon"}) {
    CAPTURE(text);
    CHECK(failure_of([&] { seconds(text); }).message ==
          "--max-time " + text + ": use a duration such as 3h30m, 45m or 90s");
  }
}

TEST_CASE("--max-time: a step and a save must fit") {
  train::TimeLimit limit(100, 10);
  CHECK_FALSE(limit.reached(84));
  CHECK(limit.reached(85));
  limit.add_step(20);
  CHECK_FALSE(limit.reached(64));
  CHECK(limit.reached(65));
  limit.add_save(2);
  CHECK_FALSE(limit.reached(76));
  // A step that was followed by a save of 30 s.
  limit.add_step(48, 30);
  CHECK_FALSE(limit.reached(76));
  limit.add_step(60, 30);
  CHECK(limit.reached(68));
  CHECK_FALSE(train::TimeLimit(0, 10).reached(1e9));
}
