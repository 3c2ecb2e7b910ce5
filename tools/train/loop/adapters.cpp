#include "loop/adapters.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "fail.hpp"
#include "model/params.hpp"
#include "report/files.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

constexpr std::string_view a_suffix = ".lora_A.weight";
constexpr std::string_view b_suffix = ".lora_B.weight";

// Whole values of the adapters of all units, by UNIT/PARAMETER.
using Values = std::map<std::string, std::vector<float>>;

std::string key_of(const fsdp::Unit& unit, std::string_view param) {
  return fmt::format("{}/{}", unit.name(), param);
}

// Rounds to nearest even. The values are finite.
std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

float f32_of(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16U);
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
  std::vector<std::byte> stored(segment.values.bytes());
  stream.copy(stored.data(), segment.values.data, stored.size());
  stream.synchronize();
  std::vector<float> values(segment.values.count);
  const bool narrow = segment.values.dtype == atoll::DType::bf16;
  std::vector<std::uint16_t> low(narrow ? values.size() : 0);
  if (narrow) {
    std::memcpy(low.data(), stored.data(), stored.size());
    std::ranges::transform(low, values.begin(), f32_of);
  } else {
    std::memcpy(values.data(), stored.data(), stored.size());
  }
  change(std::span(values));
  if (narrow) {
    std::ranges::transform(values, low.begin(), bf16_of);
    std::memcpy(stored.data(), low.data(), stored.size());
  } else {
    std::memcpy(stored.data(), values.data(), stored.size());
  }
  stream.copy(segment.values.data, stored.data(), stored.size());
  stream.synchronize();
}

}  // namespace

Adapters adapters_of(const RunOptions& options) {
  require(options.lora_rank >= 0, "--lora-rank: must not be negative");
  require(options.lora_alpha >= 0, "--lora-alpha: must not be negative");
  if (options.lora_rank == 0) {
    require(options.lora_alpha == 0 && options.lora_targets.empty() && options.lora_base.empty(),
            "--lora-alpha, --lora-targets and --lora-base: need --lora-rank");
    return {};
  }
  require(options.lora_base.empty() || options.lora_base == "int8",
          "--lora-base {}: use int8, or leave it out", options.lora_base);
  require(options.lora_base.empty() || !options.lora_merge,
          "--lora-merge: the base is in 8 bits, and merging would lose what the rounding has left "
          "out; export the adapters, and merge them into the original weights with peft");
  const double alpha =
      options.lora_alpha > 0 ? options.lora_alpha : 2 * static_cast<double>(options.lora_rank);
  Adapters adapters{options.lora_rank, alpha, {}, options.lora_base == "int8"};
  const auto& all = adapter_targets();
  for (const std::string& target : options.lora_targets) {
    require(std::ranges::find(all, target) != all.end(), "--lora-targets {}: use some of {}",
            target, fmt::join(all, ", "));
  }
  std::ranges::copy_if(all, std::back_inserter(adapters.targets), [&](const std::string& target) {
    return options.lora_targets.empty() ||
           std::ranges::find(options.lora_targets, target) != options.lora_targets.end();
  });
  return adapters;
}

void export_adapters(const std::filesystem::path& folder, fsdp::Engine& engine,
                     const ModelConfig& model, const std::string& base, atoll::DType dtype,
                     bool is_first) {
  fsdp::export_weights(folder / "adapter_model.safetensors", engine, dtype,
                       [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                         if (!is_adapter(param.name)) return std::string();
                         return "base_model.model." + hf_name(unit.name(), param.name);
                       });
  if (!is_first) return;
  auto config = nlohmann::ordered_json::object();
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base;
  config["r"] = model.adapters.rank;
  config["lora_alpha"] = model.adapters.alpha;
  config["lora_dropout"] = 0.0;
  config["target_modules"] = model.adapters.targets;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  write_file_atomic(folder / "adapter_config.json", config.dump(2) + "\n");
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
