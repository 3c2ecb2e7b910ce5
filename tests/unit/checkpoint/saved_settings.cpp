// The settings of the optimizer in the index of a checkpoint, and the warning of load() about other
// settings.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "checkpoint/index.hpp"
#include "thread_ranks.hpp"
#include "unit/collected_log.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
using nlohmann::json;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using Options = fsdp::OptimizerOptions;

namespace {

// A folder for a checkpoint.
class Folder : public train_test::TemporaryFolder {
 public:
  fs::path index() const { return path() / "index.json"; }
  json read() const { return json::parse(std::ifstream(index())); }
  // Gives the index a new digest.
  void write(const json& content) const {
    std::vector<fsdp::ShardFile> files;
    for (const json& file : content.at("files"))
      files.push_back(
          {file.at("bytes").get<std::uint64_t>(), file.at("header").get<std::string>()});
    std::ofstream(index()) << fsdp::index_text(content, content.at("save").get<std::string>(),
                                               files);
  }
};

void add_units(fsdp::Engine& engine, bool trains_bias) {
  engine.add_unit("a", {{"weight", {4, 8}}, {"bias", {8}, {}, trains_bias}});
  engine.add_unit("b", {{"weight", {8, 4}}});
  engine.seal({"a", "b"});
  engine.initialize(1);
}

struct Job {
  Options options{};
  int ranks = 1;
  bool own = false;  // the optimizer is one of the caller, which calls use_groups()
  bool trains_bias = true;
};

enum class Action {
  save,
  load
};

// Returns the warnings of the job about settings.
std::vector<std::string> run(const Job& job, const Folder& folder, Action action) {
  const CollectedLog log;
  const auto body = [&](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, job.ranks}));
    add_units(engine, job.trains_bias);
    if (job.own) {
      fsdp::use_groups(engine, job.options);
      if (action == Action::save) return fsdp::save(folder.path(), engine);
      fsdp::load(folder.path(), engine);
    } else {
      fsdp::Optimizer optimizer(engine, job.options);
      if (action == Action::save) return fsdp::save(folder.path(), engine, optimizer);
      fsdp::load(folder.path(), engine, optimizer);
    }
  };
  run_thread_ranks(job.ranks, body, [](atoll::Config& config) { config.log = "warn"; });
  return log.with("settings");
}

// Saves a checkpoint with `saved`, loads it with `loaded`, and returns the only warning after its
// prefix, or "" if there is none.
std::string warning(const Job& saved, const Job& loaded) {
  const Folder folder;
  CHECK(run(saved, folder, Action::save).empty());
  const auto texts = run(loaded, folder, Action::load);
  REQUIRE(texts.size() <= 1);
  if (texts.empty()) return "";
  const std::string prefix =
      folder.index().string() + ": the optimizer had other settings (groups, decay): ";
  const std::size_t at = texts[0].find(prefix);
  REQUIRE(at != std::string::npos);
  return texts[0].substr(at + prefix.size());
}

}  // namespace

TEST_CASE("saved settings: the index lists the settings of each trainable parameter") {
  const Folder folder;
  Job job;
  job.options.weight_decay = 0.1f;
  job.options.decay = fsdp::Decay::matrices;
  job.options.groups = {{.pattern = "b.*", .learning_rate_scale = 0.5f, .beta2 = 0.99f}};
  run(job, folder, Action::save);
  const auto settings = [](double scale, double decay, double beta2) {
    return json{
        {"learning_rate_scale", scale}, {"weight_decay", decay}, {"beta1", 0.9}, {"beta2", beta2}};
  };
  CHECK(folder.read().at("settings") == json{{"a.weight", settings(1, 0.1, 0.95)},
                                             {"a.bias", settings(1, 0, 0.95)},
                                             {"b.weight", settings(0.5, 0.1, 0.99)}});
  job.trains_bias = false;
  run(job, folder, Action::save);
  CHECK_FALSE(folder.read().at("settings").contains("a.bias"));
}

TEST_CASE("saved settings: other groups or another decay rule are a warning on one rank") {
  for (const bool own : {false, true}) {
    CAPTURE(own);
    Job plain{.ranks = 2, .own = own};
    plain.options.weight_decay = 0.1f;
    CHECK(warning(plain, plain) == "");
    Job other = plain;
    other.options.decay = fsdp::Decay::matrices;
    CHECK(warning(plain, other) ==
          "the weight decay of a.bias is 0.1 in the checkpoint and 0 in the job; 1 of 3 parameters "
          "differ");
    Job grouped = plain;
    grouped.options.groups = {{.pattern = "*.weight", .learning_rate_scale = 0.5f}};
    CHECK(warning(grouped, plain) ==
          "the learning rate scale of a.weight is 0.5 in the checkpoint and 1 in the job; 2 of 3 "
          "parameters differ");
    grouped.options.groups = {{.pattern = "b.*", .beta1 = 0.8f}};
    CHECK(warning(plain, grouped) ==
          "the beta1 of b.weight is 0.9 in the checkpoint and 0.8 in the job; 1 of 3 parameters "
          "differ");
  }
}

TEST_CASE("saved settings: groups with the same effect, and frozen parameters, are no difference") {
  Job by_rule, by_group;
  by_rule.options.weight_decay = by_group.options.weight_decay = 0.1f;
  by_rule.options.decay = fsdp::Decay::matrices;
  by_group.options.groups = {{.pattern = "a.bias", .weight_decay = 0.0f}};
  CHECK(warning(by_rule, by_group) == "");
  Job frozen = by_group;
  frozen.options.groups.clear();
  frozen.trains_bias = false;
  CHECK(warning(by_group, frozen) == "");
}

TEST_CASE("saved settings: checkpoints without settings, and damaged settings") {
  const Folder folder;
  Job job;
  run(job, folder, Action::save);
  json index = folder.read();
  index["settings"]["b.weight"]["beta1"] = "much";
  folder.write(index);
  CHECK_THROWS_WITH_AS(run(job, folder, Action::load),
                       doctest::Contains("\"beta1\" of the settings of b.weight is not a number"),
                       atoll::Error);
  index["settings"]["b.weight"].erase("beta1");
  folder.write(index);
  CHECK_THROWS_WITH_AS(run(job, folder, Action::load), doctest::Contains("index.json"),
                       atoll::Error);
  index.erase("settings");
  folder.write(index);
  job.options.weight_decay = 0.5f;
  CHECK(run(job, folder, Action::load).empty());
}

TEST_CASE("use_groups: the settings of each parameter, and its errors") {
  auto world = single_rank();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  Options options{.weight_decay = 0.1f, .decay = fsdp::Decay::matrices};
  CHECK_THROWS_WITH_AS(fsdp::use_groups(engine, options),
                       doctest::Contains("call Engine::seal() first"), atoll::Error);
  add_units(engine, /*trains_bias=*/true);
  options.groups = {{.pattern = "*.bias", .learning_rate_scale = 2, .beta1 = 0.5f}};
  const std::vector<fsdp::ParamSettings> expected{
      {1, 0.1f, 0.9f, 0.95f}, {2, 0, 0.5f, 0.95f}, {1, 0.1f, 0.9f, 0.95f}};
  CHECK(std::ranges::equal(fsdp::use_groups(engine, options), expected));
}

TEST_CASE("use_groups: ranks with other options") {
  const auto body = [](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
    add_units(engine, /*trains_bias=*/true);
    fsdp::use_groups(engine, {.weight_decay = world.rank() == 0 ? 0.1f : 0.2f});
  };
  CHECK_THROWS_WITH_AS(run_thread_ranks(2, body),
                       doctest::Contains("weight_decay: 0.1 on rank 0, 0.2 on rank 1"),
                       atoll::Error);
}
