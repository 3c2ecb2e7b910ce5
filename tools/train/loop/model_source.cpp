#include "loop/model_source.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/adapters.hpp"
#include "loop/checkpoints.hpp"
#include "loop/run_source.hpp"
#include "loop/weight_files.hpp"
#include "model/hf_config.hpp"
#include "model/hub_cache.hpp"
#include "model/params.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

bool has_init(const RunOptions& options) { return !options.init.empty() && options.init != "none"; }

// The folder's name, or NAME for models--ORG--NAME/snapshots/COMMIT in the Hub's cache.
std::string folder_name(const fs::path& folder) {
  // Without lexically_normal(), the current folder would be called ".".
  const fs::path whole = fs::absolute(folder / "").lexically_normal().parent_path();
  const fs::path snapshots = whole.parent_path();
  if (snapshots.filename() != "snapshots") return whole.filename().string();
  const std::string repository = snapshots.parent_path().filename().string();
  const std::size_t last = repository.rfind("--");
  return last == repository.npos ? repository : repository.substr(last + 2);
}

// The flag that names the model, with its value.
std::string model_flag(const RunOptions& options) {
  return has_init(options) ? "--init " + options.init : "--model " + options.model;
}

// What adapter_config.json calls the base of the adapters in a folder; "" if it does not say it.
std::string base_of_adapters(const fs::path& folder) {
  std::ifstream in(folder / adapter_config_name, std::ios::binary);
  const auto config = nlohmann::json::parse(in, nullptr, false);
  if (!config.is_object()) return "";
  const auto base = config.find("base_model_name_or_path");
  return base != config.end() && base->is_string() ? base->get<std::string>() : "";
}

// Throws an error that says what to do with a folder of adapters (LoRA), which are no model.
[[noreturn]] void refuse_adapters(const fs::path& folder, const RunOptions& options) {
  const std::string base = base_of_adapters(folder);
  fail(ErrorCode::unsupported,
       "{}: a LoRA adapter{}, not a model: merge it into its base first (merge_and_unload() of "
       "peft, or --lora-merge with --export in the run that trained it), or start from the base: "
       "--init {}",
       model_flag(options), base.empty() ? "" : " of " + quoted(base),
       base.empty() ? "BASE" : quoted(base));
}

bool has_adapters(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / adapter_config_name, ignored);
}

// The config.json in the folder of a model.
fs::path config_in(const fs::path& folder, const RunOptions& options) {
  const fs::path file = folder / "config.json";
  if (fs::exists(file)) return file;
  if (has_adapters(folder)) refuse_adapters(folder, options);
  const bool is_run = fs::exists(folder / "steps.jsonl");
  fail(ErrorCode::not_found, "{}: {} does not exist: name the folder of a model{}",
       model_flag(options), file.string(),
       is_run ? ", or a run with a checkpoint, which this run does not have"
              : ", or copy its config.json beside the weights; --export FOLDER writes one");
}

// As in transformers 5, a head whose weights differ from those of the embedding is not tied, even
// if config.json ties it.
ModelSource with_weights(const fs::path& folder, const fs::path& weights,
                         const RunOptions& options) {
  const fs::path file = config_in(folder, options);
  if (weights.filename() == adapter_weights_name) refuse_adapters(folder, options);
  ModelSource source{read_hf_config(file), weights, file};
  if (source.config.tied && head_differs(weight_files(weights))) {
    source.config.tied = false;
    log::warn(
        "{}: the weights of the head differ from those of the embedding, so they are not tied, "
        "although config.json says tie_word_embeddings",
        folder.string());
  }
  return source;
}

ModelSource in_folder(const fs::path& folder, const RunOptions& options) {
  if (options.init != "none" && has_weights(folder)) return with_weights(folder, folder, options);
  const fs::path file = config_in(folder, options);
  // A run that resumes has its weights in the checkpoint, so the folder needs none.
  const bool needs_weights = options.resume.empty() || options.resume == "auto";
  if (options.init != "none" && needs_weights) {
    if (has_adapters(folder)) refuse_adapters(folder, options);
    fail(ErrorCode::not_found,
         "--model {}: no .safetensors file in it: finish the download, or save the model again as "
         "safetensors; --init none starts from random weights",
         options.model);
  }
  return {read_hf_config(file), {}, file};
}

// The model of a run, with the weights of its checkpoint.
ModelSource of_run(const fs::path& checkpoint, const RunOptions& options) {
  ModelSource source{model_of_checkpoint(checkpoint, options), {}, {}};
  if (options.init != "none") source.checkpoint = checkpoint;
  return source;
}

ModelSource find(const RunOptions& options, std::int64_t vocab) {
  if (has_init(options)) {
    fs::path place = options.init;
    if (!fs::exists(place) && is_hub_name(options.init)) place = cached_model(options.init);
    if (!fs::exists(place)) {
      fail(ErrorCode::not_found, "--init {}: no such file or folder", options.init);
    }
    if (const auto run = checkpoint_at(place); !run.empty()) return of_run(run, options);
    return with_weights(fs::is_directory(place) ? place : place.parent_path(), place, options);
  }
  if (options.model.ends_with(".json")) {
    if (!fs::exists(options.model)) {
      fail(ErrorCode::not_found, "--model {}: no such file", options.model);
    }
    return {read_hf_config(options.model), {}, options.model};
  }
  if (is_preset(options.model)) {
    const bool copies = options.data == "synthetic:copy";
    return {preset(options.model, copies ? copy_vocabulary : vocab), {}, {}};
  }
  if (const auto run = checkpoint_at(options.model); !run.empty()) return of_run(run, options);
  if (fs::is_directory(options.model)) return in_folder(options.model, options);
  if (is_hub_name(options.model)) return in_folder(cached_model(options.model), options);
  return {preset(options.model), {}, {}};  // throws an error that lists the presets
}

}  // namespace

std::string unused_weights(const ModelConfig& model, const std::vector<fs::path>& weights) {
  std::set<std::string> used;
  for (std::size_t unit = 0; unit < unit_count(model); ++unit) {
    for (const ParamSpec& param : param_specs(model, unit)) used.insert(param.hf_name);
  }
  if (model.tied) used.insert("lm_head.weight");
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : stored_tensors(weights)) {
    // Older transformers stored the inverse frequencies of rope, which follow from config.json.
    const bool is_known = name.ends_with("rotary_emb.inv_freq");
    if (!is_known && !used.contains(name)) unused.push_back(name);
  }
  if (unused.empty()) return "";
  return fmt::format(
      "{}: the model of config.json has no parameter for {} of its tensors, for example {}; they "
      "are not used, so check config.json",
      weights.front().parent_path().string(), unused.size(), unused.front());
}

void check_shapes(const ModelConfig& model, const std::vector<fs::path>& weights) {
  if (weights.empty()) return;
  const auto stored = stored_tensors(weights);
  for (std::size_t unit = 0; unit < unit_count(model); ++unit) {
    for (const ParamSpec& param : param_specs(model, unit)) {
      const auto found = stored.find(param.hf_name);
      if (found == stored.end() || found->second.shape == param.shape) continue;
      fail(ErrorCode::mismatch,
           "{}: {} has the shape [{}], but config.json makes it [{}]: one of them belongs to "
           "another model",
           found->second.file.string(), param.hf_name, fmt::join(found->second.shape, ", "),
           fmt::join(param.shape, ", "));
    }
  }
}

fs::path local_model(const std::string& text) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return text;
  try {
    return is_hub_name(text) ? cached_model(text) : fs::path();
  } catch (const Error&) {
    return {};
  }
}

ModelSource find_model(const RunOptions& options, std::int64_t vocab) {
  ModelSource source = find(options, vocab);
  source.config.name = model_name(options);
  source.config.adapters = adapters_of(options, source.config);
  return source;
}

namespace {

// The folder of a model's files; empty for a preset, or if the folder is missing, which
// find_model() reports.
fs::path folder_of_model(const RunOptions& options) {
  const std::string& text = has_init(options) ? options.init : options.model;
  const fs::path place = is_preset(text) ? fs::path() : local_model(text);
  std::error_code ignored;
  if (place.empty() || fs::is_directory(place, ignored)) return place;
  return fs::absolute(place).parent_path();
}

bool is_text(const SourceSpec& source) {
  return source.kind == SourceKind::demo || source.kind == SourceKind::alpaca ||
         source.kind == SourceKind::other;
}

// The file of the tokenizer in a folder; empty if there is none.
fs::path tokenizer_in(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  return {};
}

}  // namespace

void choose_tokenizer(RunOptions& options) {
  std::error_code ignored;
  const bool is_auto = options.tokenizer == "auto";
  if (!is_auto && options.tokenizer != "bytes") {
    fs::path folder = local_model(options.tokenizer);
    const bool is_file = !folder.empty() || options.tokenizer.ends_with(".model");
    if (!is_file && is_hub_name(options.tokenizer))
      folder = cached_model(options.tokenizer);  // throws an error that names the download
    if (!fs::is_directory(folder, ignored)) return;
    const fs::path file = tokenizer_in(folder);
    require(!file.empty(),
            "--tokenizer {}: no tokenizer.model and no tokenizer.json in this folder",
            folder.string());
    options.tokenizer = file;
  }
  // Only data that are text need the model's tokenizer.
  const auto sources = parse_sources(options.data, options.data_type);
  if (!is_auto || !std::ranges::all_of(sources, is_text)) return;
  const fs::path folder = folder_of_model(options);
  if (folder.empty()) return;
  if (const auto run = checkpoint_at(folder); !run.empty()) {
    if (const auto name = tokenizer_of_run(run); !name.empty()) options.tokenizer = name;
    return;
  }
  if (has_adapters(folder) && !fs::exists(folder / "config.json", ignored)) {
    refuse_adapters(folder, options);
  }
  if (const fs::path file = tokenizer_in(folder); !file.empty()) options.tokenizer = file;
}

std::string unapplied_adapters(const ModelSource& source) {
  const fs::path folder = source.file.parent_path();
  if (source.weights.empty() || !has_adapters(folder)) return "";
  return fmt::format(
      "{}: has a LoRA adapter beside the model ({}), which is not applied: the run starts from the "
      "model alone; to train on with the adapter, merge it first (merge_and_unload() of peft)",
      folder.string(), adapter_config_name);
}

std::string few_ids(const ModelSource& source, const Tokenizer& tokenizer) {
  const std::int64_t ids = tokenizer.vocab_size();
  const bool is_trained = !source.weights.empty() || !source.checkpoint.empty();
  if (!is_trained || 10 * ids >= 9 * source.config.vocab) return "";
  return fmt::format(
      "the model has {} ids, but the data have at most {} ({}): if this is not the tokenizer that "
      "the weights were trained with, the ids mean other text to the model; name its tokenizer by "
      "--tokenizer, or convert the data with atoll-data",
      source.config.vocab, ids, tokenizer.name());
}

std::string model_name(const RunOptions& options) {
  const std::string& text = has_init(options) ? options.init : options.model;
  if (is_preset(text)) return text;
  const fs::path path = text;
  std::error_code ignored;
  if (const auto run = checkpoint_at(path); !run.empty()) {
    const fs::path config = config_of_checkpoint(run);
    return folder_name(config.empty() ? path : config.parent_path());
  }
  if (fs::is_directory(path, ignored)) return folder_name(path);
  if (path.extension() == ".safetensors" || path.filename() == "config.json") {
    return folder_name(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  if (is_hub_name(text))
    return text.substr(text.find('/') + 1, text.find('@') - text.find('/') - 1);
  return path.stem().string();
}

}  // namespace train
