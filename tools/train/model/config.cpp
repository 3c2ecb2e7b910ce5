#include "model/config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "fail.hpp"

namespace train {
namespace {

double attended_pairs(double length, double window) {
  if (window <= 0 || window >= length) return length * length / 2;
  return window * length - window * window / 2;
}

// Biases and the norms of heads.
std::int64_t small_parameters(const ModelConfig& config) {
  std::int64_t count = 0;
  if (config.qkv_bias) count += config.query_width() + 2 * config.kv_width();
  if (config.o_bias) count += config.hidden;
  if (config.mlp_bias) count += 2 * config.ffn + config.hidden;
  if (config.qk_norm) count += 2 * config.head_dim;
  return count;
}

void check_adapters(const ModelConfig& config) {
  const Adapters& adapters = config.adapters;
  if (adapters.rank == 0) return;
  require(adapters.rank > 0 && adapters.rank <= 10'000,
          "model {}: adapters of rank {}: the rank must be in [1, 10000]", config.name,
          adapters.rank);
  require(std::isfinite(adapters.alpha) && adapters.alpha > 0,
          "model {}: adapters: alpha = {} is not above 0", config.name, adapters.alpha);
  require(!adapters.targets.empty(), "model {}: adapters: no target", config.name);
  require(adapters.by_layer.empty() ||
              static_cast<std::int64_t>(adapters.by_layer.size()) == config.layers,
          "model {}: adapters: targets of {} layers for {} layers", config.name,
          adapters.by_layer.size(), config.layers);
  for (const std::string& target : adapters.targets) {
    require(std::ranges::find(adapter_targets(), target) != adapter_targets().end(),
            "model {}: adapters: {} is not one of {}", config.name, target,
            fmt::join(adapter_targets(), ", "));
  }
}

// Width of the input plus that of the output, of all matrices of a layer that have adapters.
std::int64_t adapted_widths(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t queries = config.query_width(), keys = config.kv_width();
  const std::pair<std::string_view, std::int64_t> widths[] = {
      {"q_proj", config.hidden + queries},       {"k_proj", config.hidden + keys},
      {"v_proj", config.hidden + keys},          {"o_proj", queries + config.hidden},
      {"gate_proj", config.hidden + config.ffn}, {"up_proj", config.hidden + config.ffn},
      {"down_proj", config.ffn + config.hidden}};
  std::int64_t sum = 0;
  for (const auto& [target, width] : widths) sum += config.adapters.on(layer, target) ? width : 0;
  return sum;
}

void check_rope_scaling(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  const auto check = [&](bool fine, std::string_view field, double value, std::string_view range) {
    require(fine, "model {}: rope scaling {}: {} = {} is not {}", config.name, name(rope.kind),
            field, value, range);
  };
  const auto positive = [&](std::string_view field, double value) {
    check(value > 0 && value < 1e9, field, value, "in (0, 1e9)");
  };
  using Kind = RopeScaling::Kind;
  if (rope.kind == Kind::none) return;
  check(rope.factor >= 1 && rope.factor < 1e9, "factor", rope.factor, "in [1, 1e9)");
  if (rope.kind == Kind::dynamic) {
    require(config.head_dim > 2, "model {}: rope scaling dynamic: needs head_dim above 2",
            config.name);
  }
  if (rope.kind != Kind::yarn && rope.kind != Kind::llama3) return;
  positive("original_max_position_embeddings",
           static_cast<double>(rope.original_max_position_embeddings));
  if (rope.kind == Kind::llama3) {
    positive("low_freq_factor", rope.low_freq_factor);
    check(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor < 1e9,
          "high_freq_factor", rope.high_freq_factor, "between low_freq_factor and 1e9");
    return;
  }
  positive("beta_fast", rope.beta_fast);
  positive("beta_slow", rope.beta_slow);
  positive("attention_factor", rope.attention_factor);
  // The formula of yarn divides by the logarithm of theta.
  check(config.rope_theta > 1, "rope_theta", config.rope_theta, "above 1");
}

double tokens_of(std::span<const std::int64_t> lengths) {
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
}

// FLOPs of attention scores and values in one forward pass, which no weights take part in.
double attention_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  const double each =
      4 * static_cast<double>(config.layers) * static_cast<double>(config.query_width());
  double flops = 0;
  for (const std::int64_t length : lengths) {
    flops += each * attended_pairs(static_cast<double>(length),
                                   static_cast<double>(config.sliding_window));
  }
  return flops;
}

}  // namespace

std::string_view name(Family family) {
  switch (family) {
    case Family::llama:
      return "llama";
    case Family::qwen2:
      return "qwen2";
    case Family::qwen3:
      return "qwen3";
    case Family::smollm3:
      return "smollm3";
    case Family::mistral:
      break;
  }
  return "mistral";
}

std::string_view name(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::linear:
      return "linear";
    case RopeScaling::Kind::dynamic:
      return "dynamic";
    case RopeScaling::Kind::yarn:
      return "yarn";
    case RopeScaling::Kind::llama3:
      return "llama3";
    case RopeScaling::Kind::none:
      break;
  }
  return "default";
}

const std::vector<std::string>& adapter_targets() {
  static const std::vector<std::string> all{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                            "gate_proj", "up_proj", "down_proj"};
  return all;
}

bool Adapters::on(std::string_view target) const {
  return rank > 0 && std::ranges::find(targets, target) != targets.end();
}

bool Adapters::on(std::int64_t layer, std::string_view target) const {
  if (rank == 0 || by_layer.empty()) return on(target);
  const auto& own = by_layer.at(static_cast<std::size_t>(layer));
  return std::ranges::find(own, target) != own.end();
}

void validate(const ModelConfig& config) {
  constexpr std::int64_t million = 1'000'000;
  const auto within = [&](std::string_view field, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
    require(value >= low && value <= high, "model {}: {} = {} is not in [{}, {}]", config.name,
            field, value, low, high);
  };
  within("num_hidden_layers", config.layers, 1, 1000);
  within("hidden_size", config.hidden, 1, million);
  within("num_attention_heads", config.heads, 1, 10'000);
  within("num_key_value_heads", config.kv_heads, 1, config.heads);
  within("head_dim", config.head_dim, 2, 10'000);
  within("intermediate_size", config.ffn, 1, million);
  within("vocab_size", config.vocab, 2, 16 * million);
  within("sliding_window", config.sliding_window, 0, 1000 * million);
  within("max_position_embeddings", config.max_seq, 1, 1000 * million);
  require(config.heads % config.kv_heads == 0,
          "model {}: num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
          config.name, config.heads, config.kv_heads);
  require(config.head_dim % 2 == 0, "model {}: head_dim = {} is odd", config.name, config.head_dim);
  require(config.rope_theta > 0.0 && config.rope_theta < 1e12,
          "model {}: rope_theta = {} is not in (0, 1e12)", config.name, config.rope_theta);
  require(config.rms_eps >= 0.0 && config.rms_eps < 1.0,
          "model {}: rms_norm_eps = {} is not in [0, 1)", config.name, config.rms_eps);
  require(
      config.rotated.empty() || static_cast<std::int64_t>(config.rotated.size()) == config.layers,
      "model {}: the list of layers with rotary embedding has {} entries for {} layers",
      config.name, config.rotated.size(), config.layers);
  check_rope_scaling(config);
  check_adapters(config);
}

std::int64_t position_limit(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  if (rope.kind != RopeScaling::Kind::yarn) return config.max_seq;
  // Not more than validate() allows for max_position_embeddings.
  const double scaled = rope.factor * static_cast<double>(rope.original_max_position_embeddings);
  return std::max(config.max_seq, static_cast<std::int64_t>(std::min(scaled, 1e9)));
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t attention =
      2 * config.hidden * config.query_width() + 2 * config.hidden * config.kv_width();
  const std::int64_t layer =
      attention + 3 * config.hidden * config.ffn + 2 * config.hidden + small_parameters(config);
  const std::int64_t tables = (config.tied ? 1 : 2) * config.vocab * config.hidden;
  return config.layers * layer + tables + config.hidden + adapter_count(config);
}

std::int64_t adapter_count(const ModelConfig& config) {
  if (config.adapters.rank == 0) return 0;
  std::int64_t widths = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    widths += adapted_widths(config, layer);
  }
  return config.adapters.rank * widths;
}

double matmul_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  const auto hidden = static_cast<double>(config.hidden);
  const auto queries = static_cast<double>(config.query_width());
  const double layer_weights = 2 * hidden * queries +
                               2 * hidden * static_cast<double>(config.kv_width()) +
                               3 * hidden * static_cast<double>(config.ffn);
  const double weights = static_cast<double>(config.layers) * layer_weights +
                         hidden * static_cast<double>(config.vocab);
  return 2 * tokens_of(lengths) * weights + attention_flops(config, lengths);
}

double training_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  if (config.adapters.rank == 0) return 3 * matmul_flops(config, lengths);
  return 2 * matmul_flops(config, lengths) + attention_flops(config, lengths) +
         6 * tokens_of(lengths) * static_cast<double>(adapter_count(config));
}

}  // namespace train
