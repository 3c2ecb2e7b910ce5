// Tests of steps whose loss or gradients are infinite or NaN.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// The first step makes the weights so large that every later step is NaN.
train::RunOptions diverging(const TemporaryFolder& folder) {
  train::RunOptions options = small_run(folder.path());
  options.optimizer = "sgd";
  options.lr = 1e30;
  options.warmup_steps = 0;
  options.clip = 0;
  options.steps = 8;
  options.save_checkpoint = false;
  return options;
}

// The warnings of non-finite steps, and the error of each rank.
struct Outcome {
  std::vector<std::string> warnings, failures;
};

Outcome run(const train::RunOptions& options,
            const std::function<void(std::string_view)>& on_line = {}) {
  const Told told = listen(options, "warn", on_line);
  return {told.with(", gradient norm "), told.failures};
}

json metrics_of(const train::RunOptions& options) {
  return json::parse(TemporaryFolder::read(fs::path(options.out) / "metrics.json"));
}

}  // namespace

TEST_CASE("non-finite steps in a row end the run, and each is a warning") {
  const TemporaryFolder folder;
  auto options = diverging(folder);
  options.max_skipped = 3;
  options.export_weights = (folder.path() / "weights.safetensors").string();
  const Outcome outcome = run(options);
  for (const auto& failure : outcome.failures) {
    CHECK(
        failure ==
        "--max-skipped 3: in steps 2 to 4 the loss or gradient norm was infinite or NaN: 21 of 21 "
        "tensors have a gradient that is not finite, the first model.embed_tokens.weight; the "
        "weights are those of step 1; lower "
        "--lr, and check the data and the weights of --init");
  }
  REQUIRE(outcome.warnings.size() == 3);
  CAPTURE(outcome.warnings[1]);
  CHECK(outcome.warnings[1].find("step 3: loss ") != std::string::npos);
  CHECK(outcome.warnings[1].find("21 of 21 tensors have a gradient that is not finite, the first "
                                 "model.embed_tokens.weight; the update was skipped (2 in a row; "
                                 "the run ends at 3)") != std::string::npos);
  const auto metrics = metrics_of(options);
  CHECK(metrics["steps"] == 4);
  CHECK(metrics["nonfinite_steps"] == 3);
  CHECK(metrics["skipped_steps"] == 3);
  CHECK(metrics["loss_last"].is_number());
  // Useless weights are not exported.
  CHECK_FALSE(fs::exists(options.export_weights));
  std::istringstream lines(TemporaryFolder::read(fs::path(options.out) / "steps.jsonl"));
  std::vector<json> records;
  for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
  REQUIRE(records.size() == 4);
  CHECK_FALSE(records[0].contains("skipped"));
  CHECK(records[1]["nonfinite"] == true);
  CHECK(records[1]["skipped"] == true);
}

TEST_CASE("non-finite steps: frozen parameters have no gradient; without a limit the run goes on") {
  const TemporaryFolder folder;
  auto options = diverging(folder);
  options.max_skipped = 0;
  options.freeze = {"model.embed_tokens.*", "model.layers.0.*"};
  options.steps = 4;
  const Outcome outcome = run(options);
  CHECK(outcome.failures == std::vector<std::string>{"", ""});
  REQUIRE(outcome.warnings.size() == 3);
  CAPTURE(outcome.warnings[0]);
  CHECK(outcome.warnings[0].find("11 of 11 tensors have a gradient that is not finite, the first "
                                 "model.layers.1.") != std::string::npos);
  CHECK(outcome.warnings[0].ends_with("the update was skipped"));
  CHECK(metrics_of(options)["skipped_steps"] == 3);
}

TEST_CASE("non-finite steps in a row: the weights before them are saved, and the reason is told") {
  const TemporaryFolder folder;
  auto options = diverging(folder);
  options.max_skipped = 2;
  options.save_checkpoint = true;
  const std::string reason = "--max-skipped 2: in steps 2 to 3 the loss or gradient norm was ";
  const fs::path checkpoints = fs::path(options.out) / "checkpoints";
  const auto all_say = [&](const std::string& more) {
    for (const auto& failure : run(options).failures) {
      CAPTURE(failure);
      CHECK(failure.starts_with(reason));
      CHECK((failure.find("could not be written: checkpoint: ") != failure.npos) == !more.empty());
    }
  };
  SUBCASE("with the flags of a usual run") {
    all_say("");
    REQUIRE(fs::exists(checkpoints / "step-00000003" / "index.json"));
    options.resume = (checkpoints / "step-00000003").string();
    options.steps = 3;  // the checkpoint has them all
    CHECK(run(options).failures == std::vector<std::string>{"", ""});
  }
  SUBCASE("a save that failed before is no checkpoint") {
    options.checkpoint_every = 2;
    // No checkpoint, so the save fails: the library replaces only folders that it has written.
    fs::create_directories(checkpoints / "step-00000002" / "notes");
    all_say("");
    CHECK(fs::exists(checkpoints / "step-00000003" / "index.json"));
  }
  SUBCASE("a checkpoint is worth more than later weights") {
    options.checkpoint_every = 1;
    all_say("");
    CHECK(fs::exists(checkpoints / "step-00000002" / "index.json"));
    CHECK_FALSE(fs::exists(checkpoints / "step-00000003"));
  }
  SUBCASE("a checkpoint that cannot be written") {
    fs::create_directories(checkpoints / "step-00000003" / "notes");
    all_say("checkpoint");
  }
  SUBCASE("an error of the save that ends the run at once") {
    const auto move = [&](std::string_view text) {
      if (text.find("(2 in a row") != text.npos) fs::rename(options.out, options.out + "-moved");
    };
    const auto failures = run(options, move).failures;
    CAPTURE(failures[0]);
    CHECK(failures[0].starts_with(reason));
    CHECK(failures[0].find("has been moved or deleted") != std::string::npos);
    CAPTURE(failures[1]);
    CHECK(failures[1].find(reason) != std::string::npos);
  }
}

TEST_CASE("non-finite steps that are not skipped") {
  const TemporaryFolder folder;
  auto options = diverging(folder);
  options.skip_nonfinite = false;
  options.max_skipped = 2;
  const Outcome outcome = run(options);
  for (const auto& failure : outcome.failures) {
    CHECK(failure.starts_with(
        "--max-skipped 2: in steps 2 to 3 the loss or gradient norm was infinite or NaN: "));
    CHECK(failure.find("the weights are those") == std::string::npos);
  }
  REQUIRE(outcome.warnings.size() == 2);
  CHECK(outcome.warnings[0].find("the update was made (--no-skip-nonfinite)") != std::string::npos);
  CHECK(metrics_of(options)["skipped_steps"] == 0);
  CHECK(metrics_of(options)["nonfinite_steps"] == 2);
}

TEST_CASE("weights that are not finite when they are read are named, and not saved") {
  const TemporaryFolder folder;
  auto options = small_run(folder.path());
  options.steps = 0;
  options.save_checkpoint = false;
  options.export_weights = (folder.path() / "model").string();
  options.export_dtype = "f32";
  REQUIRE(run(options).failures[0].empty());
  const fs::path weights = folder.path() / "model" / "model.safetensors";
  std::string bytes = TemporaryFolder::read(weights);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto entry = json::parse(bytes.substr(8, header))["model.layers.1.mlp.up_proj.weight"];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + 8 + header + entry["data_offsets"][0].get<std::size_t>(), &nan,
              sizeof nan);
  std::ofstream(weights, std::ios::binary) << bytes;
  options = small_run(folder.path());
  options.out = (folder.path() / "again").string();
  options.init = (folder.path() / "model").string();
  options.max_skipped = 2;
  const Outcome outcome = run(options);
  CHECK(outcome.failures[0].starts_with("--max-skipped 2: in steps 1 to 2 "));
  CHECK_FALSE(fs::exists(fs::path(options.out) / "checkpoints" / "step-00000002"));
  REQUIRE(!outcome.warnings.empty());
  CHECK(outcome.warnings[0].find("1 of 21 have weights that are not finite, the first "
                                 "model.layers.1.mlp.up_proj.weight") != std::string::npos);
}
