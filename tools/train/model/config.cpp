#include "model/config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fail.hpp"

namespace train {
namespace {

double attended_pairs(double length, double window) {
  if (window <= 0 || window >= length) return length * length / 2;
  return window * length - window * window / 2;
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
  constexpr std::string_view names[] = {"mistral", "llama", "qwen2", "qwen3", "smollm3"};
  return names[static_cast<std::size_t>(family)];
}

std::string_view name(RopeScaling::Kind kind) {
  constexpr std::string_view names[] = {"default", "linear", "dynamic", "yarn", "llama3"};
  return names[static_cast<std::size_t>(kind)];
}

std::array<Projection, 7> projections(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden, queries = config.query_width();
  const std::int64_t keys = config.kv_width(), ffn = config.ffn;
  return {{{"self_attn", "q_proj", hidden, queries, config.qkv_bias},
           {"self_attn", "k_proj", hidden, keys, config.qkv_bias},
           {"self_attn", "v_proj", hidden, keys, config.qkv_bias},
           {"self_attn", "o_proj", queries, hidden, config.o_bias},
           {"mlp", "gate_proj", hidden, ffn, config.mlp_bias},
           {"mlp", "up_proj", hidden, ffn, config.mlp_bias},
           {"mlp", "down_proj", ffn, hidden, config.mlp_bias}}};
}

const std::vector<std::string>& adapter_targets() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Projection& projection : projections({})) names.emplace_back(projection.name);
    return names;
  }();
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
  // 1e9 is the limit of validate() for max_position_embeddings.
  const double scaled = rope.factor * static_cast<double>(rope.original_max_position_embeddings);
  return std::max(config.max_seq, static_cast<std::int64_t>(std::min(scaled, 1e9)));
}

std::int64_t parameter_count(const ModelConfig& config) {
  std::int64_t layer = 2 * config.hidden + (config.qk_norm ? 2 * config.head_dim : 0);
  for (const Projection& projection : projections(config)) {
    layer += projection.in * projection.out + (projection.has_bias ? projection.out : 0);
  }
  const std::int64_t tables = (config.tied ? 1 : 2) * config.vocab * config.hidden;
  return config.layers * layer + tables + config.hidden + adapter_count(config);
}

std::int64_t adapter_count(const ModelConfig& config) {
  if (config.adapters.rank == 0) return 0;
  std::int64_t widths = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (const Projection& projection : projections(config)) {
      if (config.adapters.on(layer, projection.name)) widths += projection.in + projection.out;
    }
  }
  return config.adapters.rank * widths;
}

double matmul_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  double layer = 0;
  for (const Projection& projection : projections(config)) {
    layer += static_cast<double>(projection.in) * static_cast<double>(projection.out);
  }
  const double weights = static_cast<double>(config.layers) * layer +
                         static_cast<double>(config.hidden) * static_cast<double>(config.vocab);
  return 2 * tokens_of(lengths) * weights + attention_flops(config, lengths);
}

double training_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  if (config.adapters.rank == 0) return 3 * matmul_flops(config, lengths);
  return 2 * matmul_flops(config, lengths) + attention_flops(config, lengths) +
         6 * tokens_of(lengths) * static_cast<double>(adapter_count(config));
}

}  // namespace train
