// The shape of a decoder: presets, checks, parameter and FLOP counts. hf_config.hpp reads and
// writes Hugging Face's config.json.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace train {

// Families whose decoders differ only in the members of ModelConfig. The names are the values of
// "model_type" in config.json.
enum class Family {
  mistral,
  llama,
  qwen2,
  qwen3,
  smollm3
};
std::string_view name(Family family);

// Changes the frequencies of the rotary embedding so that a model sees more positions than it was
// trained on. The members have the names of "rope_parameters" in config.json; rope.hpp has the
// formulas.
struct RopeScaling {
  enum class Kind {
    none,
    linear,
    dynamic,
    yarn,
    llama3
  };
  Kind kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 0;                         // for llama3
  double high_freq_factor = 0;                        // for llama3
  std::int64_t original_max_position_embeddings = 0;  // for llama3 and yarn
  double beta_fast = 32;                              // for yarn
  double beta_slow = 1;                               // for yarn
  double attention_factor = 1;                        // for yarn: factor of cosines and sines
  bool truncate = true;                               // for yarn

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};
std::string_view name(RopeScaling::Kind kind);

// Adapters (LoRA, arXiv 2106.09685) beside the matrices of the layers: y += alpha / rank * (x A^T)
// B^T, with A [rank, in] and B [out, rank].
struct Adapters {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 0;
  // Names of the matrices that have adapters, such as "q_proj"; in the order of adapter_targets().
  std::vector<std::string> targets{};
  bool int8_base = false;  // keep the frozen matrices of the layers in 8 bits
  // If layers differ, the names of each layer, and `targets` has the names of all layers. Empty:
  // `targets` are those of every layer.
  std::vector<std::vector<std::string>> by_layer{};

  // Whether a matrix has an adapter in this layer, or in any layer.
  bool on(std::int64_t layer, std::string_view target) const;
  bool on(std::string_view target) const;
  friend bool operator==(const Adapters&, const Adapters&) = default;
};
// The matrices that can have adapters: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
// down_proj.
const std::vector<std::string>& adapter_targets();

struct ModelConfig {
  std::string name = "custom";
  Family family = Family::mistral;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  // Number of key-value heads, a divisor of heads; heads / kv_heads query heads share one.
  std::int64_t kv_heads = 0;
  // Elements per head, an even number; heads * head_dim may differ from hidden.
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  double rope_theta = 10000.0;
  double rms_eps = 1e-5;
  std::int64_t sliding_window = 0;  // number of keys that a query sees, including its own; 0: all
  bool tied = false;                // the head shares the embedding's weight
  std::int64_t max_seq = 0;         // max_position_embeddings, in tokens; see position_limit()
  bool qkv_bias = false;            // q_proj, k_proj and v_proj add a bias
  bool o_bias = false;              // o_proj adds a bias
  bool mlp_bias = false;            // gate_proj, up_proj and down_proj add a bias
  bool qk_norm = false;             // RMSNorm of each head of queries and keys before rotation
  RopeScaling rope_scaling{};
  std::vector<bool> rotated{};  // whether each layer has rotary embedding; empty: all have it
  Adapters adapters{};          // chosen by a run, not by config.json

  std::int64_t query_width() const noexcept { return heads * head_dim; }
  std::int64_t kv_width() const noexcept { return kv_heads * head_dim; }
  bool rotates(std::int64_t layer) const {
    return rotated.empty() || rotated.at(static_cast<std::size_t>(layer));
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// A matrix of a layer that can have a bias and an adapter: y [tokens, out] = x [tokens, in] W^T.
struct Projection {
  std::string_view place, name;  // such as "self_attn" and "q_proj"
  std::int64_t in, out;
  bool has_bias;
};
// Returns the projections of each layer, in the order of adapter_targets().
std::array<Projection, 7> projections(const ModelConfig& config);

// The longest row that the model can learn: max_position_embeddings, or with yarn the original
// positions times the factor, if these are more. People who add yarn to a model often leave
// max_position_embeddings as it is.
std::int64_t position_limit(const ModelConfig& config);

bool is_preset(std::string_view name);

// Names of the presets, smallest model of each family first.
std::vector<std::string_view> preset_names();

// `vocab` > 0 replaces the preset's number of tokens. Throws Error(not_found) that lists the names.
ModelConfig preset(std::string_view name, std::int64_t vocab = 0);

// Throws Error(invalid_argument) that names the model, the field and its value. Presets and
// configurations that were read are valid. The bounds keep all products below 2^62.
void validate(const ModelConfig& config);

// Number of elements of all parameters, and of those of the adapters among them.
std::int64_t parameter_count(const ModelConfig& config);
std::int64_t adapter_count(const ModelConfig& config);

// FLOPs of the matrix products in one forward pass over sequences of these lengths: 2 per
// multiply-add in projections, feed-forward, head, and attention scores and values. Causal
// attention counts half of length^2; with a window W < length, W * length - W^2 / 2. Look-ups,
// element-wise work and recomputation are not counted.
double matmul_flops(const ModelConfig& config, std::span<const std::int64_t> lengths);

// FLOPs of forward and backward: three times matmul_flops(). With adapters, backward computes no
// gradients of the other weights, so that their products count twice, those of attention scores and
// values three times; the products of the adapters are added. MFU is this number / (time * matrix
// peak).
double training_flops(const ModelConfig& config, std::span<const std::int64_t> lengths);

}  // namespace train
