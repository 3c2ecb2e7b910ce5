// Units and parameters of the model for an FSDP engine: "embed", "layers.0" ... and "head", in
// forward order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"

namespace train {

struct ParamSpec {
  std::string name;  // name within the unit: "self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  // Initial values are normal with this mean and deviation: (1, 0) for norms, (0, 0) for biases,
  // (0, 0.02) for matrices. o_proj and down_proj add to the residual stream and use 0.02 / sqrt(2
  // layers), so that its initial variance does not grow with depth. Matrices A of adapters have the
  // variance of PEFT's uniform values, (0, 1 / sqrt(3 in)), and B is 0.
  float mean = 0;
  float deviation = 0;
  std::string hf_name{};  // name in Hugging Face files: "model.layers.0.self_attn.q_proj.weight"

  std::int64_t count() const noexcept;
};

// layers + 2: unit 0 is "embed", unit n + 1 is "layers.n", and the last is "head".
std::size_t unit_count(const ModelConfig& config) noexcept;
std::string unit_name(const ModelConfig& config, std::size_t unit);

// The name that a parameter of a unit has in a Hugging Face checkpoint.
std::string hf_name(std::string_view unit, std::string_view param);

// Whether a parameter belongs to an adapter: self_attn.q_proj.lora_A.weight.
bool is_adapter(std::string_view param);
// Whether a parameter is one of the matrices that can have adapters: self_attn.q_proj.weight.
bool can_have_adapter(std::string_view param);

// Parameters of a unit. embed: embed_tokens.weight. layers.N: nine matrices and norms, and the
// biases and norms of heads that the family has. head: norm.weight and, unless the embedding is
// tied, lm_head.weight.
std::vector<ParamSpec> param_specs(const ModelConfig& config, std::size_t unit);

}  // namespace train
