#include "loop/run_source.hpp"

#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/checkpoints.hpp"
#include "loop/flags.hpp"
#include "loop/optimizer.hpp"
#include "model/hf_config.hpp"
#include "report/phase.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;  // maximum size of an index file

// Returns the value that the checkpoint stores under `name`; null if it stores none.
json recorded(const json& index, const char* name) {
  const json extra = index.value("extra", json::object());
  const auto found = extra.find(name);
  if (found == extra.end() || !found->is_string()) return {};
  const json value = json::parse(found->get<std::string>(), nullptr, false);
  return value.is_discarded() ? json() : value;
}

// The options of an optimizer that loads the checkpoint without a warning.
RunOptions optimizer_of(const json& index, RunOptions options) {
  options.optimizer = index.at("optimizer").get<std::string>();
  const json settings = recorded(index, "optimizer");
  for (const Flag& flag : flags()) {
    const auto found = settings.find(flag.key());
    if (!(flag.uses & Use::resumed) || found == settings.end()) continue;
    std::visit([&]<class T>(T RunOptions::*member) { options.*member = found->get<T>(); },
               flag.member);
  }
  return options;
}

}  // namespace

fs::path checkpoint_at(const fs::path& place) {
  std::error_code ignored;
  if (fs::exists(place / "config.json", ignored)) return {};  // a model
  for (const fs::path& folder : {place, place / "checkpoint"}) {
    if (fs::exists(folder / "index.json", ignored)) return folder;
  }
  return {};
}

ModelConfig model_of_checkpoint(const fs::path& checkpoint, const RunOptions& options) {
  const fs::path file = checkpoint / "index.json";
  const json index = read_object(file, most_bytes);
  const json model = recorded(index, "model"), optimizer = index.value("optimizer", json());
  const bool has_adapters = model.is_object() && model.value("lora_rank", 0) > 0;
  std::string_view problem;
  if (has_adapters || options.lora_rank > 0) {
    problem = "adapters need the model in Hugging Face's format";
  } else if (!index.value("states", json::array()).empty()) {
    problem = "beside the weights it has states of an average or of Muon";
  } else if (!model.is_object() || (optimizer != "adamw" && optimizer != "sgd")) {
    problem = "it does not record what its model is";
  }
  if (!problem.empty()) {
    fail(ErrorCode::unsupported,
         "{}: a checkpoint of a run from which this run cannot start ({}): write its model by "
         "`atoll-train export {} MODEL{}`, and start with --init MODEL",
         checkpoint.string(), problem, checkpoint.string(), has_adapters ? " --lora-merge" : "");
  }
  return parse_hf_config(model.dump(), file.string());
}

std::string tokenizer_of_run(const fs::path& checkpoint) {
  const fs::path config = config_of_checkpoint(checkpoint);
  std::error_code ignored;
  const fs::path file = config.parent_path() / "run_args.json";
  if (config.empty() || !fs::exists(file, ignored)) return "";
  const json name = read_object(file, most_bytes).value("tokenizer", json());
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  return text.starts_with("ids:") ? "" : text;  // ids:N names no tokenizer with text
}

void start_from(const RunOptions& options, const Setup& setup, atoll::fsdp::Engine& engine) {
  const Phase phase("loading the weights");
  const json index = read_object(setup.checkpoint / "index.json", most_bytes);
  // The library loads weights and optimizer states together, so a temporary optimizer loads them.
  make_optimizer(optimizer_of(index, options), engine, setup.mesh, setup.machine)
      ->load(setup.checkpoint);
}

}  // namespace train
