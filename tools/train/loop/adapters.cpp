#include "loop/adapters.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "atoll/checkpoint.hpp"
#include "fail.hpp"
#include "model/params.hpp"
#include "report/files.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

constexpr std::string_view a_suffix = ".lora_A.weight";
constexpr std::string_view b_suffix = ".lora_B.weight";

// Unsharded values of the adapters of all units, by UNIT/PARAMETER.
using Values = std::map<std::string, std::vector<float>>;

std::string key_of(const fsdp::Unit& unit, std::string_view param) {
  return fmt::format("{}/{}", unit.name(), param);
}

// Adds the elements [first, first + values.size()) of scale * B A, row-major with `in` columns.
void add_product(std::span<float> values, std::uint64_t first, std::uint64_t in,
                 const std::vector<float>& a, const std::vector<float>& b, float scale) {
  const std::uint64_t rank = a.size() / in;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t row = (first + i) / in, column = (first + i) % in;
    float sum = 0;
    for (std::uint64_t r = 0; r < rank; ++r) sum += b[row * rank + r] * a[r * in + column];
    values[i] += scale * sum;
  }
}

// Reads the values of a segment as f32, changes them and writes them back.
template <class Change>
void update(atoll::Stream& stream, const fsdp::Segment& segment, const Change& change) {
  const atoll::View& own = segment.values;
  std::vector<float> values(own.count);
  std::vector<atoll::bfloat16> low(own.dtype == atoll::DType::bf16 ? own.count : 0);
  void* const stored = low.empty() ? static_cast<void*>(values.data()) : low.data();
  stream.copy(stored, own.data, own.bytes());
  stream.synchronize();
  for (std::size_t i = 0; i < low.size(); ++i) values[i] = to_float(low[i]);
  change(std::span(values));
  for (std::size_t i = 0; i < low.size(); ++i) low[i] = atoll::to_bfloat16(values[i]);
  stream.copy(own.data, stored, own.bytes());
  stream.synchronize();
}

// The matrices of a layer that can have adapters, by their Hugging Face names without ".weight":
// "model.layers.0.self_attn.q_proj".
std::vector<std::string> matrices_of(const ModelConfig& model, std::int64_t layer) {
  constexpr std::string_view end = ".weight";
  std::vector<std::string> names;
  for (const ParamSpec& spec : param_specs(model, static_cast<std::size_t>(layer) + 1)) {
    if (!can_have_adapter(spec.name)) continue;
    names.push_back(spec.hf_name.substr(0, spec.hf_name.size() - end.size()));
  }
  return names;
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Whether the pattern matches the whole name, or the rest of the name after one of its dots.
bool matches(const std::string& pattern, const std::string& name) {
  for (std::size_t begin = 0;;) {
    if (::fnmatch(pattern.c_str(), name.c_str() + begin, 0) == 0) return true;
    begin = name.find('.', begin);
    if (begin++ == name.npos) return false;
  }
}

// Returns the matrices of the layer that a pattern matches; all of them if there is no pattern.
// Removes from `unused` the patterns that match one.
std::vector<std::string> chosen(const std::vector<std::string>& names,
                                const std::vector<std::string>& patterns,
                                std::vector<std::string>& unused) {
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    const auto fits = [&](const std::string& pattern) { return matches(pattern, name); };
    std::erase_if(unused, fits);
    if (patterns.empty() || std::ranges::any_of(patterns, fits)) targets.push_back(last_part(name));
  }
  return targets;
}

}  // namespace

Adapters adapters_of(const ModelFlags& flags, const ModelConfig& model) {
  if (flags.lora_rank == 0) return {};
  const double alpha =
      flags.lora_alpha > 0 ? flags.lora_alpha : 2 * static_cast<double>(flags.lora_rank);
  Adapters adapters{flags.lora_rank, alpha, {}, flags.lora_base == "int8", {}};
  std::vector<std::string> unused = flags.lora_targets;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    adapters.by_layer.push_back(chosen(matrices_of(model, layer), flags.lora_targets, unused));
  }
  require(unused.empty(),
          "--lora-targets {}: matches no matrix of a layer of {}; use names such as {}, their last "
          "parts such as q_proj, or patterns such as 'layers.0.*', or leave the flag out for all",
          unused.empty() ? "" : unused.front(), model.name, matrices_of(model, 0).front());
  auto& layers = adapters.by_layer;
  std::ranges::copy_if(
      adapter_targets(), std::back_inserter(adapters.targets), [&](const std::string& target) {
        return std::ranges::any_of(layers, [&](const std::vector<std::string>& own) {
          return std::ranges::find(own, target) != own.end();
        });
      });
  if (std::ranges::adjacent_find(layers, std::not_equal_to()) == layers.end()) layers.clear();
  return adapters;
}

std::vector<std::string> target_modules(const ModelConfig& model) {
  const Adapters& adapters = model.adapters;
  if (adapters.by_layer.empty()) return adapters.targets;
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    std::ranges::copy_if(
        matrices_of(model, layer), std::back_inserter(names),
        [&](const std::string& name) { return adapters.on(layer, last_part(name)); });
  }
  return names;
}

void export_adapters(const std::filesystem::path& folder, fsdp::Engine& engine,
                     const AdapterExport& what) {
  fsdp::export_weights(folder / adapter_weights_name, engine, what.dtype,
                       [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                         if (!is_adapter(param.name)) return std::string();
                         return "base_model.model." + hf_name(unit.name(), param.name);
                       });
  if (!what.is_first) return;
  auto config = nlohmann::ordered_json::object();
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = nullptr;
  config["revision"] = nullptr;
  if (!what.base.empty()) config["base_model_name_or_path"] = what.base;
  if (!what.revision.empty()) config["revision"] = what.revision;
  config["r"] = what.model.adapters.rank;
  config["lora_alpha"] = what.model.adapters.alpha;
  config["lora_dropout"] = 0.0;
  config["target_modules"] = target_modules(what.model);
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  write_file_atomic(folder / adapter_config_name, config.dump(2) + "\n");
}

void merge_adapters(fsdp::Engine& engine, const ModelConfig& model) {
  Values adapters;
  engine.visit(
      [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param, std::span<const float> values) {
        if (!is_adapter(param.name)) return;
        adapters[key_of(unit, param.name)].assign(values.begin(), values.end());
      });
  const auto scale =
      static_cast<float>(model.adapters.alpha / static_cast<double>(model.adapters.rank));
  atoll::Stream stream = engine.device().stream({.name = "merge"});
  for (const fsdp::Segment& segment : engine.segments()) {
    const std::string& name = segment.param->name;
    const std::string stem = name.substr(0, name.rfind('.'));
    const auto a = adapters.find(key_of(*segment.unit, stem + std::string(a_suffix)));
    if (is_adapter(name) || !name.ends_with(".weight") || a == adapters.end()) continue;
    const auto& b = adapters.at(key_of(*segment.unit, stem + std::string(b_suffix)));
    const auto in = static_cast<std::uint64_t>(segment.param->shape[1]);
    update(stream, segment, [&](std::span<float> values) {
      add_product(values, segment.first, in, a->second, b, scale);
    });
  }
  engine.refresh();
}

}  // namespace train
