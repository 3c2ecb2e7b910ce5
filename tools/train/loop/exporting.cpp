#include "loop/exporting.hpp"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "atoll/checkpoint.hpp"
#include "fail.hpp"
#include "loop/adapters.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

constexpr std::string_view weights_name = "model.safetensors";
// An index of earlier weights in the folder would hide the new file.
constexpr const char* index_name = "model.safetensors.index.json";
// The files of a tokenizer in a Hugging Face folder.
constexpr std::array tokenizer_files{"tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja"};

bool is_file(const RunOptions& options) { return options.export_weights.ends_with(".safetensors"); }

atoll::DType export_dtype(const RunOptions& options) {
  return atoll::dtype_from_name(options.export_dtype.empty() ? options.dtype
                                                             : options.export_dtype);
}

std::string_view torch_name(atoll::DType dtype) {
  if (dtype == atoll::DType::bf16) return "bfloat16";
  return dtype == atoll::DType::f16 ? "float16" : "float32";
}

void copy_one(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  if (!fs::is_regular_file(from, ignored) || fs::equivalent(from, to, ignored)) return;
  std::ifstream in(from, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) fail(ErrorCode::io, "{}: cannot be read", from.string());
  write_file_atomic(to, bytes);
}

// Copies the files of the tokenizer that the run has used.
void copy_tokenizer(const RunOptions& options, const Setup& setup, const fs::path& folder) {
  std::error_code ignored;
  const bool is_path = fs::is_regular_file(options.tokenizer, ignored);
  if (!is_path && (setup.tokenizer->name() == "bytes" || setup.weights.empty())) return;
  const fs::path from =
      is_path ? fs::path(options.tokenizer).parent_path() : setup.weights.front().parent_path();
  for (const char* name : tokenizer_files) copy_one(from / name, folder / name);
  if (is_path && fs::path(options.tokenizer).extension() == ".model") {
    copy_one(options.tokenizer, folder / "tokenizer.model");
  }
}

void write_companions(const RunOptions& options, const Setup& setup, const fs::path& folder) {
  const std::string index = (folder / index_name).string();
  ::unlink(index.c_str());
  write_file_atomic(folder / "config.json",
                    hf_config_json(setup.model, torch_name(export_dtype(options))));
  copy_tokenizer(options, setup, folder);
  if (!setup.weights.empty()) {
    const fs::path from = setup.weights.front().parent_path();
    copy_one(from / "generation_config.json", folder / "generation_config.json");
  }
}

}  // namespace

void check_export(const RunOptions& options) {
  const fs::path target = options.export_weights;
  std::error_code ignored;
  require(options.lora_rank == 0 || options.lora_merge || !is_file(options),
          "--export {}: adapters need a folder; use one, or --lora-merge for the whole model",
          options.export_weights);
  if (is_file(options)) {
    check_folder(target.has_parent_path() ? target.parent_path() : ".");
    if (fs::exists(target, ignored)) check_writable(target);
    return;
  }
  require(options.init.empty() || !fs::equivalent(options.init, target, ignored),
          "{}: is the folder of --init; use another folder", target.string());
  check_folder(target);
  if (!fs::exists(target, ignored)) return;
  for (const std::string_view name : {weights_name, std::string_view("config.json")}) {
    check_writable(target / name);
  }
}

void export_model(const atoll::World& world, const RunOptions& options, const Setup& setup,
                  fsdp::Engine& engine) {
  const fs::path target = options.export_weights;
  const fs::path folder = is_file(options) ? target.parent_path() : target;
  // The other ranks wait for the lowest rank of the engine in export_weights().
  if (world.rank() == 0 && !folder.empty()) {
    try {
      make_directory(folder);
    } catch (const Error&) {
      // export_weights() throws the reason on all ranks.
    }
  }
  if (options.lora_rank > 0 && !options.lora_merge) {
    const std::string& base = options.init.empty() ? options.model : options.init;
    export_adapters(folder, engine, setup.model, base, export_dtype(options), world.rank() == 0);
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
