#include "model/params.hpp"

#include <fmt/format.h>

#include <cmath>

#include "fail.hpp"

namespace train {
namespace {

constexpr float matrix_deviation = 0.02F;

ParamSpec norm(const std::string& name, const std::string& prefix, std::int64_t width) {
  return {name, prefix + name, {width}, 1.0F, 0.0F};
}

std::vector<ParamSpec> layer_specs(const ModelConfig& config, std::size_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto matrix = [&](const char* name, std::int64_t out, std::int64_t in) {
    return ParamSpec{name, prefix + name, {out, in}, 0.0F, matrix_deviation};
  };
  const auto residual = [&](const char* name, std::int64_t out, std::int64_t in) {
    ParamSpec spec = matrix(name, out, in);
    spec.deviation /= std::sqrt(2.0F * static_cast<float>(config.layers));
    return spec;
  };
  return {
      norm("input_layernorm.weight", prefix, config.hidden),
      matrix("self_attn.q_proj.weight", config.query_width(), config.hidden),
      matrix("self_attn.k_proj.weight", config.kv_width(), config.hidden),
      matrix("self_attn.v_proj.weight", config.kv_width(), config.hidden),
      residual("self_attn.o_proj.weight", config.hidden, config.query_width()),
      norm("post_attention_layernorm.weight", prefix, config.hidden),
      matrix("mlp.gate_proj.weight", config.ffn, config.hidden),
      matrix("mlp.up_proj.weight", config.ffn, config.hidden),
      residual("mlp.down_proj.weight", config.hidden, config.ffn),
  };
}

void require_unit(const ModelConfig& config, std::size_t unit) {
  require(unit < unit_count(config), "model {} has {} units, no unit {}", config.name,
          unit_count(config), unit);
}

}  // namespace

std::int64_t ParamSpec::count() const noexcept {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::size_t unit_count(const ModelConfig& config) noexcept {
  return static_cast<std::size_t>(config.layers) + 2;
}

std::string unit_name(const ModelConfig& config, std::size_t unit) {
  require_unit(config, unit);
  if (unit == 0) return "embed";
  if (unit + 1 == unit_count(config)) return "head";
  return fmt::format("layers.{}", unit - 1);
}

std::vector<ParamSpec> param_specs(const ModelConfig& config, std::size_t unit) {
  require_unit(config, unit);
  const std::vector<std::int64_t> table{config.vocab, config.hidden};
  if (unit == 0) {
    return {{"embed_tokens.weight", "model.embed_tokens.weight", table, 0.0F, matrix_deviation}};
  }
  if (unit + 1 < unit_count(config)) return layer_specs(config, unit - 1);
  std::vector<ParamSpec> specs{norm("norm.weight", "model.", config.hidden)};
  if (!config.tied) {
    specs.push_back({"lm_head.weight", "lm_head.weight", table, 0.0F, matrix_deviation});
  }
  return specs;
}

}  // namespace train
