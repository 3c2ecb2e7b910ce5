// The units of the model and their parameters, as an FSDP engine wants them: "embed", "layers.0"
// ... and "head", in the order of the forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/config.hpp"

namespace train {

struct ParamSpec {
  std::string name;     // within the unit: "self_attn.q_proj.weight"
  std::string hf_name;  // in a Hugging Face checkpoint: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  // Initial values are normal with this mean and deviation: norms (1, 0), matrices (0, 0.02), and
  // (0, 0.02 / sqrt(2 layers)) for o_proj and down_proj, whose outputs add up along the residual
  // path, so that its variance at the start does not grow with depth.
  float mean = 0;
  float deviation = 0;

  std::int64_t count() const noexcept;
};

// layers + 2: unit 0 is "embed", unit n + 1 is "layers.n", the last is "head".
std::size_t unit_count(const ModelConfig& config) noexcept;
std::string unit_name(const ModelConfig& config, std::size_t unit);

// embed: embed_tokens.weight. layers.N: the nine tensors of a layer. head: norm.weight and
// lm_head.weight; with tied embeddings only the norm, and the head uses embed_tokens.weight again.
std::vector<ParamSpec> param_specs(const ModelConfig& config, std::size_t unit);

}  // namespace train
