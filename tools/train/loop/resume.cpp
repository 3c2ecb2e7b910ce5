#include "loop/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "fail.hpp"
#include "loop/adapters.hpp"
#include "loop/checkpoints.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using nlohmann::json;

// Whether the run goes on with the training of the checkpoint.
bool trains(const RunOptions& options) { return !options.evaluate && !only_exports(options); }

json optimizer_settings(const RunOptions& options) {
  json settings = to_json(options, Use::resumed);
  settings["name"] = options.optimizer;
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
  shape["lora_rank"] = model.adapters.rank;
  shape["lora_alpha"] = model.adapters.alpha;
  shape["lora_targets"] = target_modules(model);
  return shape;
}

std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Returns how two values differ, or "" if they do not. Objects are compared by the keys that both
// have, because versions of the trainer may add keys.
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
  if (name == "data") {
    return fmt::format(
        "data: other samples (the files, --samples, --seq, --train-on, --eval-split or "
        "the tokenizer differ): {}, in the checkpoint {}",
        shown(mine), shown(saved));
  }
  return fmt::format("{}: {}, in the checkpoint {}", name, shown(mine), shown(saved));
}

// The advice to take the flags of the run that has saved the checkpoint, unless the run has them.
std::string with_config(const RunOptions& options, const fs::path& folder) {
  const fs::path config = config_of_checkpoint(folder);
  std::error_code ignored;
  if (config.empty() || fs::equivalent(config, options.config_file, ignored)) return "";
  return fmt::format("start it with --config {}, which has the flags of that run; or ",
                     config.string());
}

// Throws an error that names every difference that the user has not allowed.
void compare_runs(const atoll::World& world, const RunOptions& options, const fs::path& folder,
                  const json& saved, const json& mine) {
  std::vector<std::string> differences, changed, unknown;
  const auto& allowed = options.resume_with_changes;
  for (const auto& [name, value] : mine.items()) {
    // Evaluations and exports need no more than weights of the same model.
    if (!trains(options) && name != "model" && name != "frozen") continue;
    if (!saved.contains(name)) {
      unknown.push_back(name);
      continue;
    }
    const std::string differs = difference(name, saved[name], value);
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
       "--resume {}: the run differs from that of the checkpoint: {}: {}use the same, or add "
       "--resume-with-changes {}",
       folder.string(), fmt::join(differences, "; "), with_config(options, folder),
       fmt::join(changed, ","));
}

// Steps completed by the run that saved the checkpoint, skipped updates included.
std::int64_t steps_done(const json& saved, const fs::path& folder) {
  const json steps = saved.value("step", json());
  const std::int64_t done = steps.is_number_unsigned() ? steps.get<std::int64_t>() : -1;
  if (done >= 0) return done;
  fail(ErrorCode::bad_data,
       "{}: the checkpoint lacks the number of its last step; save it again with atoll-train",
       folder.string());
}

// `extra` holds what a checkpoint records about its run, such as settings and the number of steps,
// each value as a string of JSON. Returns the values parsed, by name. A string that is not valid
// JSON becomes null, and an entry that is not a string is left out.
json parsed_texts(const json& extra) {
  json values = json::object();
  for (const auto& [name, text] : extra.items()) {
    if (!text.is_string()) continue;
    const json value = json::parse(text.get<std::string>(), nullptr, false);
    values[name] = value.is_discarded() ? json() : value;
  }
  return values;
}

// The members of the index of a checkpoint that a resumed run needs.
struct Recorded {
  json extra;
  bool has_average = false;  // the checkpoint has an average of the weights
};

// Throws an error if only one of run and checkpoint averages weights.
void check_average(const RunOptions& options, const fs::path& folder, bool has_average) {
  if (has_average == (options.ema > 0)) return;
  fail(ErrorCode::mismatch, "--resume {}: the checkpoint has {}: {}{}", folder.string(),
       has_average ? "an average of weights" : "no average of weights",
       with_config(options, folder), has_average ? "add the --ema of its run" : "leave --ema out");
}

// Returns what a checkpoint records, without loading it; nothing if its index cannot be read, which
// load_state() then reports. Rank 0 reads it for all ranks. Collective.
std::optional<Recorded> recorded(atoll::World& world, const fs::path& folder) {
  std::string text;
  if (world.rank() == 0) {
    std::ifstream in(folder / "index.json");
    const json index = json::parse(in, nullptr, false);
    if (index.is_object() && index.contains("format") && index.contains("extra")) {
      text = json::array({index["extra"], index.value("states", json::array())}).dump();
    }
  }
  text = world.exchange("train/resume", text).front();
  if (text.empty()) return {};
  const json all = json::parse(text);
  if (!all[0].is_object()) return {};
  const bool has_average = std::ranges::find(all[1], json("average")) != all[1].end();
  return Recorded{parsed_texts(all[0]), has_average};
}

// A member of what a checkpoint records under `name`; null if it does not record it.
json recorded_member(const json& saved, const char* name, const char* member) {
  const json object = saved.value(name, json());
  return object.is_object() ? object.value(member, json()) : json();
}

// Throws an error if only one of run and checkpoint has adapters, because their parameters differ.
void check_lora(const RunOptions& options, const fs::path& folder, const json& saved,
                const json& mine) {
  const json theirs = recorded_member(saved, "model", "lora_rank");
  const auto own = mine["model"]["lora_rank"].get<std::int64_t>();
  if (!theirs.is_number_integer() || (theirs > 0) == (own > 0)) return;
  if (theirs > 0) {
    fail(ErrorCode::mismatch,
         "--resume {}: the checkpoint was trained with --lora-rank {}: {}add it", folder.string(),
         theirs.get<std::int64_t>(), with_config(options, folder));
  }
  fail(ErrorCode::mismatch,
       "--resume {}: the checkpoint was trained without --lora-rank: write its model by "
       "`atoll-train export {} MODEL`, and start with --init MODEL --lora-rank {}",
       folder.string(), folder.string(), own);
}

// Loads a checkpoint. Errors of the library name functions of the library; errors of this function
// name flags instead.
Extra load_state(const fs::path& folder, RunOptimizer& optimizer, bool is_ours) {
  const Phase phase("loading the checkpoint");
  constexpr std::string_view advice =
      "to take over the weights alone, use export_weights and import_weights";
  try {
    return optimizer.load(folder);
  } catch (const Error& error) {
    // If recorded() could not read index.json, the file counts as damaged: --resume auto skips it.
    if (!is_ours && error.code() == ErrorCode::mismatch) {
      fail(ErrorCode::bad_data, "{}", error.what());
    }
    const std::string text = error.what();
    const std::size_t at = text.find(advice);
    if (at == text.npos) throw;
    throw Error(error.code(), text.substr(0, at) +
                                  "to start from the weights alone, write them by `atoll-train "
                                  "export " +
                                  folder.string() + " MODEL`, and use --init MODEL" +
                                  text.substr(at + advice.size()));
  }
}

// Throws an error if the checkpoint has the state of another kind of optimizer.
void check_optimizer(const RunOptions& options, const fs::path& folder, const json& saved,
                     const json& mine) {
  const json name = recorded_member(saved, "optimizer", "name");
  const std::string theirs = name.is_string() ? name : "", own = mine["optimizer"]["name"];
  if (theirs.empty() || theirs == own) return;
  fail(ErrorCode::mismatch,
       "--resume {}: the checkpoint has the state of --optimizer {}, with which {} cannot go on: "
       "{}write its model by `atoll-train export {} MODEL`, and start with --init MODEL",
       folder.string(), theirs, own, with_config(options, folder), folder.string());
}

Resumed load(atoll::World& world, const RunOptions& options, const fs::path& folder,
             const json& mine, RunOptimizer& optimizer) {
  const std::optional<Recorded> early = recorded(world, folder);
  if (early) {
    check_optimizer(options, folder, early->extra, mine);
    check_lora(options, folder, early->extra, mine);
    compare_runs(world, options, folder, early->extra, mine);
    check_average(options, folder, early->has_average);
  }
  json saved = parsed_texts(load_state(folder, optimizer, early.has_value()));
  if (!early) compare_runs(world, options, folder, saved, mine);
  const std::int64_t done = steps_done(saved, folder);
  require(
      !trains(options) || done <= options.steps,
      "--resume {}: the checkpoint has {} steps, more than --steps {}: raise --steps, or resume "
      "an earlier checkpoint",
      folder.string(), done, options.steps);
  if (world.rank() == 0 && !options.evaluate) {
    const json ranks = saved.value("ranks", json());
    const bool changed = trains(options) && ranks.is_number_integer() && ranks != world.size();
    log::info(
        "{} {} after step {}{}", trains(options) ? "resuming" : "exporting", folder.string(), done,
        changed
            ? fmt::format(", on {} ({} before)", counted(world.size(), "rank"), ranks.get<int>())
            : "");
  }
  return {done, std::move(saved)};
}

// Returns the checkpoint that rank 0 finds in the folder of --resume, which may be a results
// folder. Throws Error(not_found) on every rank if there is none. A save that was cut off may have
// left only FOLDER.old, which the library loads.
fs::path checkpoint_in(atoll::World& world, fs::path folder) {
  std::string problem;
  std::error_code ignored;
  if (world.rank() == 0 && fs::exists(folder / "checkpoint" / "index.json", ignored)) {
    folder /= "checkpoint";
  }
  const bool looks = world.rank() == 0 && !fs::exists(folder.string() + ".old", ignored);
  if (looks && !fs::exists(folder, ignored)) {
    problem = "no such folder";
  } else if (looks && !fs::exists(folder / "index.json", ignored)) {
    problem = "not a checkpoint: it has no index.json";
  }
  const std::vector<std::string> found{problem, folder.string()};
  const json chosen = json::parse(world.exchange("train/resume/given", json(found).dump()).front());
  problem = chosen[0].get<std::string>();
  if (!problem.empty()) fail(ErrorCode::not_found, "--resume {}: {}", folder.string(), problem);
  return chosen[1].get<std::string>();
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

json same_run(const RunOptions& options, const Setup& setup, const fsdp::Engine& engine) {
  return {{"data", fmt::format("{:016x}", setup.dataset.fingerprint())},
          {"seed", options.seed},
          {"global_batch", options.global_batch},
          {"optimizer", optimizer_settings(options)},
          {"frozen", frozen_names(engine)},
          {"model", model_shape(setup.model)}};
}

Extra recorded_by(const json& run, std::int64_t done) {
  Extra extra{{"step", std::to_string(done)}};
  for (const auto& [name, value] : run.items()) extra[name] = value.dump();
  return extra;
}

std::optional<Resumed> resume(atoll::World& world, const RunOptions& options, const json& mine,
                              RunOptimizer& optimizer) {
  if (options.resume != "auto") {
    return load(world, options, checkpoint_in(world, options.resume), mine, optimizer);
  }
  const fs::path out = run_directory(options.out, run_name(options));
  const auto folders = checkpoints_of_rank_0(world, out);
  for (std::size_t i = 0; i < folders.size(); ++i) {
    try {
      return load(world, options, folders[i], mine, optimizer);
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
