#include <fmt/format.h>

#include <algorithm>

#include "fail.hpp"
#include "model/config.hpp"

namespace train {
namespace {

constexpr std::int64_t default_vocab = 32000;

// The members of ModelConfig in which presets differ most.
struct Shape {
  std::int64_t layers, hidden, heads, kv_heads, ffn;
  std::int64_t window, max_seq;
};

ModelConfig mistral(std::string name, const Shape& shape) {
  return {.name = std::move(name),
          .layers = shape.layers,
          .hidden = shape.hidden,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.hidden / shape.heads,
          .ffn = shape.ffn,
          .vocab = default_vocab,
          .sliding_window = shape.window,
          .max_seq = shape.max_seq};
}

// A small model of a family, for tests and first runs.
ModelConfig tiny(std::string name, Family family) {
  ModelConfig config = mistral(std::move(name), {6, 192, 6, 2, 512, 0, 2048});
  config.family = family;
  return config;
}

// No rotary embedding in every fourth layer.
std::vector<bool> three_of_four(std::int64_t layers) {
  std::vector<bool> rotated;
  for (std::int64_t layer = 0; layer < layers; ++layer) rotated.push_back((layer + 1) % 4 != 0);
  return rotated;
}

ModelConfig llama_8b() {
  ModelConfig config = mistral("llama-3.1-8b", {32, 4096, 32, 8, 14336, 0, 131072});
  config.family = Family::llama;
  config.vocab = 128256;
  config.rope_theta = 5e5;
  config.rope_scaling = {.kind = RopeScaling::Kind::llama3,
                         .factor = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_max_position_embeddings = 8192};
  return config;
}

ModelConfig qwen2_7b() {
  ModelConfig config = mistral("qwen2.5-7b", {28, 3584, 28, 4, 18944, 0, 131072});
  config.family = Family::qwen2;
  config.vocab = 152064;
  config.rope_theta = 1e6;
  config.rms_eps = 1e-6;
  config.qkv_bias = true;
  return config;
}

ModelConfig qwen3_8b() {
  ModelConfig config = mistral("qwen3-8b", {36, 4096, 32, 8, 12288, 0, 40960});
  config.family = Family::qwen3;
  config.vocab = 151936;
  config.rope_theta = 1e6;
  config.rms_eps = 1e-6;
  config.qk_norm = true;
  return config;
}

ModelConfig smollm3_3b() {
  ModelConfig config = mistral("smollm3-3b", {36, 2048, 16, 4, 11008, 0, 65536});
  config.family = Family::smollm3;
  config.vocab = 128256;
  config.rope_theta = 5e6;
  config.rms_eps = 1e-6;
  config.tied = true;
  config.rotated = three_of_four(config.layers);
  return config;
}

ModelConfig with(ModelConfig config, void (*change)(ModelConfig&)) {
  change(config);
  return config;
}

// Shapes of the published models are from the config.json of each.
const std::vector<ModelConfig>& presets() {
  static const std::vector<ModelConfig> all{
      mistral("mistral-tiny", {6, 192, 6, 2, 512, 0, 2048}),
      mistral("mistral-mini", {8, 384, 6, 2, 1024, 0, 2048}),
      mistral("mistral-small", {12, 768, 12, 4, 2048, 0, 4096}),
      mistral("mistral-1b", {24, 2048, 16, 4, 5632, 4096, 8192}),
      mistral("mistral-7b", {32, 4096, 32, 8, 14336, 4096, 32768}),
      tiny("llama-tiny", Family::llama),
      llama_8b(),
      with(tiny("qwen2.5-tiny", Family::qwen2), [](ModelConfig& c) { c.qkv_bias = true; }),
      qwen2_7b(),
      with(tiny("qwen3-tiny", Family::qwen3), [](ModelConfig& c) { c.qk_norm = true; }),
      qwen3_8b(),
      with(tiny("smollm3-tiny", Family::smollm3),
           [](ModelConfig& c) {
             c.tied = true;
             c.rotated = three_of_four(c.layers);
           }),
      smollm3_3b()};
  return all;
}

}  // namespace

bool is_preset(std::string_view name) {
  return std::ranges::find(presets(), name, &ModelConfig::name) != presets().end();
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const ModelConfig& preset : presets()) names.push_back(preset.name);
  return names;
}

ModelConfig preset(std::string_view name, std::int64_t vocab) {
  const auto found = std::ranges::find(presets(), name, &ModelConfig::name);
  if (found == presets().end()) {
    fail(ErrorCode::not_found, "unknown model \"{}\"; use one of {}", name,
         fmt::join(preset_names(), ", "));
  }
  ModelConfig config = *found;
  if (vocab > 0) config.vocab = vocab;
  validate(config);
  return config;
}

}  // namespace train
