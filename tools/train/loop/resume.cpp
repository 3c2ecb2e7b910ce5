#include "loop/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using nlohmann::json;

const std::vector<std::string> names{"data",      "seed",   "global_batch",
                                     "optimizer", "frozen", "model"};

json optimizer_settings(const RunOptions& options) {
  json settings{{"name", options.optimizer},
                {"weight_decay", options.weight_decay},
                {"decay", options.decay},
                {"clip", options.clip},
                {"group", options.group}};
  if (options.optimizer != "sgd") {
    settings["beta1"] = options.beta1;
    settings["beta2"] = options.beta2;
    settings["epsilon"] = options.epsilon;
  }
  if (options.optimizer == "muon") settings["momentum"] = options.momentum;
  return settings;
}

json frozen_names(const fsdp::Engine& engine) {
  json frozen = json::array();
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      if (!param.trainable) frozen.push_back(hf_name(unit->name(), param.name));
    }
  }
  return frozen;
}

json model_shape(const ModelConfig& model) {
  json shape = json::parse(hf_config_json(model, "float32"));
  for (const char* key : {"torch_dtype", "dtype"}) shape.erase(key);
  return shape;
}

std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Returns how two values differ, or "" if they do not. Objects differ in the keys that both have,
// because versions of the trainer may add keys.
std::string difference(const std::string& name, const json& saved, const json& mine) {
  if (saved.is_object() && mine.is_object()) {
    for (const auto& [key, value] : mine.items()) {
      if (!saved.contains(key) || saved[key] == value) continue;
      return fmt::format("{}: {} is {}, in the checkpoint {}", name, key, shown(value),
                         shown(saved[key]));
    }
    return "";
  }
  if (saved == mine) return "";
  if (name == "frozen") {
    return fmt::format("frozen: {} parameters, in the checkpoint {}", mine.size(), saved.size());
  }
  return fmt::format("{}: {}, in the checkpoint {}", name, shown(mine), shown(saved));
}

// Throws an error that names every difference that the user has not allowed.
void compare_runs(const atoll::World& world, const RunOptions& options, const fs::path& folder,
                  const Extra& saved, const Extra& mine) {
  std::vector<std::string> differences, changed, unknown;
  for (const auto& [name, text] : mine) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      unknown.push_back(name);
      continue;
    }
    const json value = json::parse(found->second, nullptr, false);
    const std::string differs = difference(name, value, json::parse(text));
    const auto& allowed = options.resume_with_changes;
    if (differs.empty() || std::ranges::find(allowed, name) != allowed.end()) continue;
    differences.push_back(differs);
    changed.push_back(name);
  }
  if (!unknown.empty() && world.rank() == 0) {
    log::warn("{}: the checkpoint does not record {}, so they are not compared", folder.string(),
              fmt::join(unknown, ", "));
  }
  if (differences.empty()) return;
  fail(ErrorCode::mismatch,
       "--resume {}: the run differs from that of the checkpoint: {}: use the same, or add "
       "--resume-with-changes {}",
       folder.string(), fmt::join(differences, "; "), fmt::join(changed, ","));
}

// Steps completed by the run that saved the checkpoint, skipped updates included.
std::int64_t steps_done(const Extra& extra, const fs::path& folder) {
  const auto found = extra.find("step");
  const std::string text = found == extra.end() ? "" : found->second;
  const char* const end = text.data() + text.size();
  std::int64_t steps = -1;
  const auto parsed = std::from_chars(text.data(), end, steps);
  if (parsed.ec == std::errc() && parsed.ptr == end && steps >= 0) return steps;
  fail(ErrorCode::bad_data,
       "{}: the checkpoint lacks the number of its last step; save it again with atoll-train",
       folder.string());
}

std::int64_t load(const atoll::World& world, const RunOptions& options, const fs::path& folder,
                  const Extra& mine, RunOptimizer& optimizer) {
  const Extra saved = optimizer.load(folder);
  compare_runs(world, options, folder, saved, mine);
  const std::int64_t done = steps_done(saved, folder);
  require(
      done <= options.steps,
      "--resume {}: the checkpoint has {} steps, more than --steps {}: raise --steps, or resume "
      "an earlier checkpoint",
      folder.string(), done, options.steps);
  return done;
}

// The checkpoints that rank 0 finds, so that all ranks load the same.
std::vector<fs::path> checkpoints_of_rank_0(atoll::World& world, const fs::path& out) {
  json found = json::array();
  if (world.rank() == 0) {
    for (const fs::path& folder : find_checkpoints(out)) found.push_back(folder.string());
  }
  std::vector<fs::path> folders;
  for (const json& folder : json::parse(world.exchange("train/checkpoints", found.dump())[0])) {
    folders.emplace_back(folder.get<std::string>());
  }
  return folders;
}

bool is_damage(ErrorCode code) {
  return code == ErrorCode::io || code == ErrorCode::bad_data || code == ErrorCode::not_found;
}

}  // namespace

Extra same_run(const RunOptions& options, const Setup& setup, const fsdp::Engine& engine) {
  return {{"data", json(fmt::format("{:016x}", setup.dataset.fingerprint())).dump()},
          {"seed", json(options.seed).dump()},
          {"global_batch", json(options.global_batch).dump()},
          {"optimizer", optimizer_settings(options).dump()},
          {"frozen", frozen_names(engine).dump()},
          {"model", model_shape(setup.model).dump()}};
}

void check_resume(const RunOptions& options) {
  for (const std::string& name : options.resume_with_changes) {
    require(std::ranges::find(names, name) != names.end(),
            "--resume-with-changes {}: use names of {}", name, fmt::join(names, ", "));
  }
  require(options.resume_with_changes.empty() || !options.resume.empty(),
          "--resume-with-changes: needs --resume");
  // With auto, --init is where the first job of several starts.
  const bool starts_twice = !options.resume.empty() && options.resume != "auto" &&
                            !options.init.empty() && options.init != "none";
  require(!starts_twice,
          "--init {}: the checkpoint of --resume has the weights; remove one of the two flags",
          options.init);
}

std::optional<std::int64_t> resume(atoll::World& world, const RunOptions& options,
                                   const Setup& setup, const fsdp::Engine& engine,
                                   RunOptimizer& optimizer) {
  const Extra mine = same_run(options, setup, engine);
  if (options.resume != "auto") return load(world, options, options.resume, mine, optimizer);
  const fs::path out = run_directory(options.out, run_name(options));
  const auto folders = checkpoints_of_rank_0(world, out);
  for (std::size_t i = 0; i < folders.size(); ++i) {
    try {
      const std::int64_t done = load(world, options, folders[i], mine, optimizer);
      if (world.rank() == 0) log::info("resuming {} after step {}", folders[i].string(), done);
      return done;
    } catch (const Error& error) {
      if (!is_damage(error.code()) || world.failure() || i + 1 == folders.size()) throw;
      if (world.rank() == 0) {
        log::warn("--resume auto: skipped a checkpoint that is not whole: {}", error.what());
      }
    }
  }
  if (world.rank() == 0) {
    log::info("--resume auto: no checkpoint in {}, so the run starts anew", out.string());
  }
  return {};
}

}  // namespace train
