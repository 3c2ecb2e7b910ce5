#include "commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <utility>

#include "loop/checkpoints.hpp"
#include "loop/flags.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

bool is_word(const std::vector<std::string>& words, std::size_t at) {
  return at < words.size() && !words[at].starts_with('-');
}

// The flags for `word`, a model or a run. A run's link `first` precedes its last checkpoint.
std::vector<std::string> flags_of(const std::string& word, const char* first) {
  std::error_code ignored;
  const fs::path place = fs::absolute(fs::path(word) / "", ignored).parent_path();
  const bool is_model = fs::exists(place / "config.json", ignored);
  for (const fs::path& checkpoint : {place, place / first, place / "checkpoint"}) {
    if (is_model || !fs::exists(checkpoint / "index.json", ignored)) continue;
    const fs::path config = config_of_checkpoint(checkpoint);
    if (!config.empty()) return {"--config", config, "--resume", checkpoint};
  }
  const bool is_file = word.ends_with(".safetensors");
  if (!is_model && !is_file && !fs::exists(place, ignored) &&
      fs::exists(place.parent_path() / "steps.jsonl", ignored)) {
    throw WrongUsage{
        fmt::format("{}: this run has no such checkpoint: use {}, or run with --keep-best", word,
                    fs::path(word).parent_path().string())};
  }
  return {is_file ? "--init" : "--model", word};
}

// Whether evaluate and export keep this flag of the run's config.toml, maybe on another machine.
bool is_used(const Flag& flag, Mode mode) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, flag.name()) != names.end();
  };
  if (is_one_of({"--lr-decay-steps", "--warmup-ratio", "--early-stopping", "--eval-every",
                 "--check-fabric", "--fabric-rate", "--require-gdr", "--mesh", "--islands",
                 "--secondary-shards", "--memory-limit", "--backend", "--threads"})) {
    return false;
  }
  const bool exports = mode == Mode::export_model;
  if (exports && flag.name().starts_with("--eval-")) return false;
  if (flag.name() == "--export-dtype" || flag.name() == "--lora-merge") return exports;
  return (flag.group != "Run" && flag.group != "Results") ||
         is_one_of({"--resume", "--resume-with-changes", "--out"});
}

}  // namespace

Mode mode_of(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[1] == "export") return Mode::export_model;
  const bool evaluates = words.size() > 1 && words[1] == "evaluate";
  return evaluates || std::ranges::find(words, "--evaluate") != words.end() ? Mode::evaluate
                                                                            : Mode::train;
}

std::vector<std::string> in_flags(std::vector<std::string> words, Mode mode) {
  const bool is_command = words.size() > 1 && !words[1].starts_with('-');
  if (mode == Mode::train || !is_command) return words;
  const bool exports = mode == Mode::export_model;
  std::vector<std::string> flags =
      exports ? std::vector<std::string>{"--steps", "0"} : std::vector<std::string>{"--evaluate"};
  std::size_t used = 2;
  const auto model = std::ranges::find(words, "--model");
  if (!exports && !is_word(words, used) && words.end() - model > 1) {  // the flag names a run, too
    std::rotate(words.begin() + 2, model + 1, model + 2);
    words.erase(std::ranges::find(words, "--model"));
  }
  if (is_word(words, used)) {
    const auto place = flags_of(words[used++], exports ? "checkpoint" : "best");
    flags.insert(flags.end(), place.begin(), place.end());
    if (exports && is_word(words, used)) {
      if (fs::exists(fs::path(words[used]) / "steps.jsonl")) {
        throw WrongUsage{
            fmt::format("{}: this is the folder of a run: name a new folder", words[used])};
      }
      flags.insert(flags.end(), {"--export", words[used++]});
    }
  }
  const auto asks = [](const std::string& word) {
    return word == "-h" || word == "--help" || word == "--help-all";
  };
  if (exports && used < 4 && std::ranges::none_of(words, asks)) {
    throw WrongUsage{"name a run and a new folder: atoll-train export RUN FOLDER"};
  }
  words.erase(words.begin() + 1, words.begin() + static_cast<std::ptrdiff_t>(used));
  words.insert(words.begin() + 1, flags.begin(), flags.end());
  return words;
}

std::vector<cli::Replaces> replaced_flags(Mode mode) {
  std::vector<cli::Replaces> all;
  for (const auto& [one, other] : {std::pair("--steps", "--epochs"),
                                   {"--eval-data", "--eval-split"},
                                   {"--warmup-steps", "--warmup-ratio"}}) {
    all.push_back({one, other});
    all.push_back({other, one});
  }
  if (mode == Mode::train) return all;
  const std::string_view typed = mode == Mode::evaluate ? "--evaluate" : "--steps";
  for (const Flag& flag : flags()) {
    if (!is_used(flag, mode)) all.push_back({typed, flag.name()});
  }
  // A new --data also replaces these flags, because they limit the data of the run.
  for (const char* limit : {"--samples", "--eval-data", "--eval-split", "--data-type"}) {
    all.push_back({"--data", limit});
  }
  for (const char* data : {"--data", "--eval-data"}) all.push_back({data, "--eval-samples"});
  return all;
}

}  // namespace train
