// The shape of a Mistral model: presets, Hugging Face's config.json, and its FLOPs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace train {

struct ModelConfig {
  std::string name = "custom";
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
  std::int64_t max_seq = 0;         // largest number of positions

  std::int64_t query_width() const noexcept { return heads * head_dim; }
  std::int64_t kv_width() const noexcept { return kv_heads * head_dim; }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Names of the presets, smallest model first.
std::vector<std::string_view> preset_names();

// `vocab` > 0 replaces the preset's 32000 tokens. Throws Error(not_found) that lists the names.
ModelConfig preset(std::string_view name, std::int64_t vocab = 0);

// Reads Hugging Face's config.json (at most 1 MiB; model_type "mistral"). Throws Error(io, bad_data
// or unsupported) that names the file and the key, or the byte of a syntax error.
ModelConfig read_hf_config(const std::filesystem::path& file);
// The same for the text of a file; `file` is its name in errors and in the result.
ModelConfig parse_hf_config(std::string_view text, const std::string& file);

// Writes a config.json for Hugging Face's MistralForCausalLM.
std::string hf_config_json(const ModelConfig& config, std::string_view torch_dtype);

// Throws Error(invalid_argument) that names the model, the field and its value. The functions above
// return only valid configurations. The bounds keep all products below 2^62.
void validate(const ModelConfig& config);

std::int64_t parameter_count(const ModelConfig& config);

// FLOPs of the matrix products in one forward pass over sequences of these lengths: 2 per
// multiply-add in projections, feed-forward, head, and attention scores and values. Causal
// attention counts half of length^2; with a window W < length, W * length - W^2 / 2. Look-ups,
// element-wise work and recomputation are not counted.
double matmul_flops(const ModelConfig& config, std::span<const std::int64_t> lengths);

// FLOPs of forward and backward: three times matmul_flops(). MFU is this number / (time * matrix
// peak).
double training_flops(const ModelConfig& config, std::span<const std::int64_t> lengths);

}  // namespace train
