#include "model/params.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fail.hpp"

namespace train {
namespace {

ParamSpec norm(const char* name, std::int64_t width) { return {name, {width}, 1.0F, 0.0F}; }

ParamSpec matrix(std::string name, std::int64_t out, std::int64_t in) {
  return {std::move(name), {out, in}, 0.0F, 0.02F};
}

std::vector<ParamSpec> layer_specs(const ModelConfig& config, std::int64_t layer) {
  std::vector<ParamSpec> specs{norm("input_layernorm.weight", config.hidden)};
  for (const Projection& projection : projections(config)) {
    const auto& [place, name, in, out, has_bias] = projection;
    if (name == "o_proj" && config.qk_norm) {
      specs.push_back(norm("self_attn.q_norm.weight", config.head_dim));
      specs.push_back(norm("self_attn.k_norm.weight", config.head_dim));
    }
    if (name == "gate_proj")
      specs.push_back(norm("post_attention_layernorm.weight", config.hidden));
    const std::string stem = fmt::format("{}.{}", place, name);
    specs.push_back(matrix(stem + ".weight", out, in));
    const bool adds_to_residual = name == "o_proj" || name == "down_proj";
    if (adds_to_residual) {
      specs.back().deviation /= std::sqrt(2.0F * static_cast<float>(config.layers));
    }
    if (has_bias) specs.push_back({stem + ".bias", {out}, 0.0F, 0.0F});
    if (!config.adapters.on(layer, name)) continue;
    const std::int64_t rank = config.adapters.rank;
    const float deviation = 1.0F / std::sqrt(3.0F * static_cast<float>(in));
    specs.push_back({stem + ".lora_A.weight", {rank, in}, 0.0F, deviation});
    specs.push_back({stem + ".lora_B.weight", {out, rank}, 0.0F, 0.0F});
  }
  return specs;
}

}  // namespace

std::int64_t ParamSpec::count() const noexcept {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

bool is_adapter(std::string_view param) { return param.find(".lora_") != param.npos; }

bool can_have_adapter(std::string_view param) {
  return !is_adapter(param) && std::ranges::any_of(adapter_targets(), [&](const auto& target) {
    return param.ends_with("." + target + ".weight");
  });
}

std::size_t unit_count(const ModelConfig& config) noexcept {
  return static_cast<std::size_t>(config.layers) + 2;
}

std::string unit_name(const ModelConfig& config, std::size_t unit) {
  require(unit < unit_count(config), "model {} has {} units, no unit {}", config.name,
          unit_count(config), unit);
  if (unit == 0) return "embed";
  if (unit + 1 == unit_count(config)) return "head";
  return fmt::format("layers.{}", unit - 1);
}

std::string hf_name(std::string_view unit, std::string_view param) {
  if (param == "lm_head.weight") return std::string(param);
  return unit.starts_with("layers.") ? fmt::format("model.{}.{}", unit, param)
                                     : fmt::format("model.{}", param);
}

std::vector<ParamSpec> param_specs(const ModelConfig& config, std::size_t unit) {
  const std::string name = unit_name(config, unit);
  std::vector<ParamSpec> specs;
  if (name == "embed") {
    specs = {matrix("embed_tokens.weight", config.vocab, config.hidden)};
  } else if (name == "head") {
    specs = {norm("norm.weight", config.hidden)};
    if (!config.tied) specs.push_back(matrix("lm_head.weight", config.vocab, config.hidden));
  } else {
    specs = layer_specs(config, static_cast<std::int64_t>(unit) - 1);
  }
  for (ParamSpec& spec : specs) spec.hf_name = hf_name(name, spec.name);
  return specs;
}

}  // namespace train
