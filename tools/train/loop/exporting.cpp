#include "loop/exporting.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/checkpoint.hpp"
#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/adapters.hpp"
#include "loop/weight_files.hpp"
#include "model/hf_config.hpp"
#include "model/hub_cache.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

constexpr std::string_view weights_name = "model.safetensors";
constexpr std::string_view config_name = "config.json";
constexpr const char* generation_name = "generation_config.json";
constexpr std::uintmax_t most_copied_bytes = std::uintmax_t{1} << 30;  // limit for one copied file

bool is_file(const RunOptions& options) { return options.export_weights.ends_with(".safetensors"); }

atoll::DType export_dtype(const RunOptions& options) {
  return atoll::dtype_from_name(options.export_dtype.empty() ? options.dtype
                                                             : options.export_dtype);
}

std::string_view torch_name(atoll::DType dtype) {
  if (dtype == atoll::DType::bf16) return "bfloat16";
  return dtype == atoll::DType::f16 ? "float16" : "float32";
}

// Copies a file. Returns false if `from` is not a regular file.
bool copy_one(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  if (!fs::is_regular_file(from, ignored)) return false;
  if (fs::equivalent(from, to, ignored)) return true;
  write_file_atomic(to, read_text(from, most_copied_bytes));
  return true;
}

// The absolute path with links resolved, as far as the path exists.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error).lexically_normal();
  fs::path real = fs::weakly_canonical(whole, error);
  if (error) real = whole;
  return real.has_filename() ? real : real.parent_path();  // removes a slash at the end
}

fs::path export_folder(const RunOptions& options) {
  const fs::path target = options.export_weights;
  if (!is_file(options)) return target;
  return target.has_parent_path() ? target.parent_path() : ".";
}

// The folder of the model that the run has read; empty for a preset.
fs::path source_folder(const Setup& setup) {
  return setup.weights.empty() ? setup.config.parent_path() : setup.weights.front().parent_path();
}

// Copies the files of the tokenizer that the run has used. Returns whether there are any.
bool copy_tokenizer(const RunOptions& options, const Setup& setup, const fs::path& folder) {
  std::error_code ignored;
  const bool is_path = fs::is_regular_file(options.tokenizer, ignored);
  if (!is_path && (setup.tokenizer->name() == "bytes" || setup.config.empty())) return false;
  const fs::path from = is_path ? fs::path(options.tokenizer).parent_path() : source_folder(setup);
  bool is_copied = false;
  for (const std::string_view name : tokenizer_files()) {
    is_copied = copy_one(from / name, folder / name) || is_copied;
  }
  if (!is_path || fs::path(options.tokenizer).extension() != ".model") return is_copied;
  copy_one(options.tokenizer, folder / "tokenizer.model");
  // Without this file, transformers puts no bos before a text, as the rows of the training have it.
  const std::string config = setup.tokenizer->transformers_config();
  const bool has_config = fs::exists(from / "tokenizer_config.json", ignored) ||
                          fs::exists(from / "tokenizer.json", ignored);
  if (!has_config && !config.empty()) write_file_atomic(folder / "tokenizer_config.json", config);
  return true;
}

// The config.json of the trained model. The ids of tokens are those of the config.json that the run
// has read, or otherwise those of the tokenizer.
std::string config_text(const RunOptions& options, const Setup& setup) {
  using nlohmann::ordered_json;
  auto config = ordered_json::parse(hf_config_json(setup.model, torch_name(export_dtype(options))));
  auto source = ordered_json::object();
  if (!setup.config.empty()) {
    std::ifstream in(setup.config);
    source = ordered_json::parse(in, nullptr, false);
  }
  const std::pair<const char*, std::int32_t> ids[] = {{"bos_token_id", setup.tokenizer->bos()},
                                                      {"eos_token_id", setup.tokenizer->eos()},
                                                      {"pad_token_id", -1}};
  for (const auto& [key, id] : ids) {
    if (source.is_object() && source.contains(key)) {
      config[key] = source[key];
    } else if (id >= 0 && id < setup.model.vocab) {
      config[key] = id;
    }
  }
  return config.dump(2) + "\n";
}

// Writes the files beside the weights. Deletes an index of earlier weights, which would hide them.
void write_companions(const RunOptions& options, const Setup& setup, const fs::path& folder) {
  ::unlink((folder / weight_index_name).c_str());
  write_file_atomic(folder / config_name, config_text(options, setup));
  if (!copy_tokenizer(options, setup, folder)) {
    log::info("--export: the run has no files of a tokenizer ({}), so {} has none",
              setup.tokenizer->name(), folder.string());
  }
  if (setup.config.empty()) return;
  copy_one(source_folder(setup) / generation_name, folder / generation_name);
}

// The base model of adapters as peft finds it: a folder, or a name on the Hub with its revision.
// Random weights have none.
AdapterExport adapters_onto(const RunOptions& options, const Setup& setup, bool is_first) {
  AdapterExport what{setup.model, setup.given, "", export_dtype(options), is_first};
  std::error_code ignored;
  if (setup.weights.empty()) {
    what.base.clear();
  } else if (!fs::exists(setup.given, ignored) && is_hub_name(setup.given)) {
    const std::size_t at = std::min(setup.given.find('@'), setup.given.size());
    what.base = setup.given.substr(0, at);
    if (at < setup.given.size()) what.revision = setup.given.substr(at + 1);
  } else if (fs::path(setup.given).extension() == ".safetensors") {
    what.base = fs::absolute(setup.given, ignored).lexically_normal().parent_path();
  } else {
    what.base = fs::absolute(setup.given, ignored).lexically_normal();
  }
  return what;
}

}  // namespace

std::vector<fs::path> export_files(const RunOptions& options) {
  if (options.export_weights.empty()) return {};
  if (is_file(options)) return {options.export_weights};
  std::vector<std::string_view> names{adapter_weights_name, adapter_config_name};
  if (options.lora_rank == 0 || options.lora_merge) {
    names = {weights_name, config_name, generation_name};
    names.insert(names.end(), tokenizer_files().begin(), tokenizer_files().end());
  }
  std::vector<fs::path> files;
  for (const std::string_view name : names) files.push_back(export_folder(options) / name);
  return files;
}

void check_export(const RunOptions& options) {
  std::error_code ignored;
  check_folder(export_folder(options));
  const bool whole = !is_file(options) && (options.lora_rank == 0 || options.lora_merge);
  require(!whole || !fs::exists(export_folder(options) / adapter_config_name, ignored),
          "{} has adapters ({}), which transformers would add to the model; use "
          "another folder",
          options.export_weights, adapter_config_name);
  if (!fs::exists(options.export_weights, ignored)) return;
  for (const fs::path& file : export_files(options)) check_writable(file);
}

void check_export_spares(const RunOptions& options, const ModelSource& source,
                         const std::vector<fs::path>& weights) {
  if (options.export_weights.empty()) return;
  std::vector<fs::path> folders;
  for (const fs::path& file : weights) {
    folders.push_back(real_path(file.has_parent_path() ? file.parent_path() : "."));
    folders.push_back(real_path(file).parent_path());
  }
  // With --init none the run does not load the weights beside config.json; they must stay as well.
  const fs::path beside = source.file.has_parent_path() ? source.file.parent_path() : ".";
  if (weights.empty() && source.file.filename() == config_name && has_weights(beside)) {
    folders.push_back(real_path(beside));
  }
  require(std::ranges::find(folders, real_path(export_folder(options))) == folders.end(),
          "--export {}: the weights of the model that the run starts from are in this folder; use "
          "another folder",
          options.export_weights);
  std::error_code ignored;
  const bool adapters = options.lora_rank > 0 && !options.lora_merge;
  require(!adapters || !fs::exists(export_folder(options) / weights_name, ignored),
          "{} has a whole model ({}), which transformers would open with the adapters; use another "
          "folder",
          options.export_weights, weights_name);
}

void export_model(const atoll::World& world, const RunOptions& options, const Setup& setup,
                  fsdp::Engine& engine) {
  const Phase phase("exporting the model");
  const fs::path target = options.export_weights, folder = export_folder(options);
  // No barrier is needed: in export_weights() the other ranks wait for the engine's lowest rank.
  if (world.rank() == 0) {
    try {
      make_directory(folder);
    } catch (const Error&) {
      // export_weights() fails for the same reason, and then throws on all ranks.
    }
  }
  if (options.lora_rank > 0 && !options.lora_merge) {
    export_adapters(folder, engine, adapters_onto(options, setup, world.rank() == 0));
    if (world.rank() == 0) log::info("adapters in {}", target.string());
    return;
  }
  if (options.lora_rank > 0) merge_adapters(engine, setup.model);
  fsdp::export_weights(is_file(options) ? target : target / weights_name, engine,
                       export_dtype(options),
                       [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                         return is_adapter(param.name) ? "" : hf_name(unit.name(), param.name);
                       });
  if (world.rank() == 0 && !is_file(options)) write_companions(options, setup, folder);
  if (world.rank() == 0) log::info("model in {}", target.string());
}

}  // namespace train
