#include "model/params.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fail.hpp"

namespace train {
namespace {

ParamSpec norm(const char* name, std::int64_t width) { return {name, {width}, 1.0F, 0.0F}; }

ParamSpec matrix(const char* name, std::int64_t out, std::int64_t in) {
  return {name, {out, in}, 0.0F, 0.02F};
}

std::vector<ParamSpec> layer_specs(const ModelConfig& config, std::int64_t layer) {
  const auto residual = [&](const char* name, std::int64_t out, std::int64_t in) {
    ParamSpec spec = matrix(name, out, in);
    spec.deviation /= std::sqrt(2.0F * static_cast<float>(config.layers));
    return spec;
  };
  std::vector<ParamSpec> specs{norm("input_layernorm.weight", config.hidden)};
  const auto add = [&](ParamSpec weight, bool has_bias) {
    const std::string stem = weight.name.substr(0, weight.name.rfind('.'));
    const std::int64_t out = weight.shape[0], in = weight.shape[1], rank = config.adapters.rank;
    specs.push_back(std::move(weight));
    if (has_bias) specs.push_back({stem + ".bias", {out}, 0.0F, 0.0F});
    if (!config.adapters.on(layer, stem.substr(stem.find('.') + 1))) return;
    const float deviation = 1.0F / std::sqrt(3.0F * static_cast<float>(in));
    specs.push_back({stem + ".lora_A.weight", {rank, in}, 0.0F, deviation});
    specs.push_back({stem + ".lora_B.weight", {out, rank}, 0.0F, 0.0F});
  };
  add(matrix("self_attn.q_proj.weight", config.query_width(), config.hidden), config.qkv_bias);
  add(matrix("self_attn.k_proj.weight", config.kv_width(), config.hidden), config.qkv_bias);
  add(matrix("self_attn.v_proj.weight", config.kv_width(), config.hidden), config.qkv_bias);
  if (config.qk_norm) {
    specs.push_back(norm("self_attn.q_norm.weight", config.head_dim));
    specs.push_back(norm("self_attn.k_norm.weight", config.head_dim));
  }
  add(residual("self_attn.o_proj.weight", config.hidden, config.query_width()), config.o_bias);
  specs.push_back(norm("post_attention_layernorm.weight", config.hidden));
  add(matrix("mlp.gate_proj.weight", config.ffn, config.hidden), config.mlp_bias);
  add(matrix("mlp.up_proj.weight", config.ffn, config.hidden), config.mlp_bias);
  add(residual("mlp.down_proj.weight", config.hidden, config.ffn), config.mlp_bias);
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
