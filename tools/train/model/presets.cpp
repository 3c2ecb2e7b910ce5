#include <fmt/format.h>

#include <algorithm>

#include "fail.hpp"
#include "model/config.hpp"

namespace train {
namespace {

constexpr std::int64_t default_vocab = 32000;

// The members of ModelConfig in which presets differ most.
struct Shape {
  std::int64_t layers, hidden, heads, kv_heads, ffn, max_seq;
};
constexpr Shape tiny{6, 192, 6, 2, 512, 2048};  // for tests and first runs

ModelConfig made(std::string name, const Shape& shape, ModelConfig config = {}) {
  config.name = std::move(name);
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.ffn = shape.ffn;
  config.max_seq = shape.max_seq;
  if (config.vocab == 0) config.vocab = default_vocab;
  return config;
}

// No rotary embedding in every fourth layer.
std::vector<bool> three_of_four(std::int64_t layers) {
  std::vector<bool> rotated;
  for (std::int64_t layer = 0; layer < layers; ++layer) rotated.push_back((layer + 1) % 4 != 0);
  return rotated;
}

// Shapes of the published models are from the config.json of each.
const std::vector<ModelConfig>& presets() {
  static const std::vector<ModelConfig> all{
      made("mistral-tiny", tiny),
      made("mistral-mini", {8, 384, 6, 2, 1024, 2048}),
      made("mistral-small", {12, 768, 12, 4, 2048, 4096}),
      made("mistral-1b", {24, 2048, 16, 4, 5632, 8192}, {.sliding_window = 4096}),
      made("mistral-7b", {32, 4096, 32, 8, 14336, 32768}, {.sliding_window = 4096}),
      made("llama-tiny", tiny, {.family = Family::llama}),
      made("llama-3.1-8b", {32, 4096, 32, 8, 14336, 131072},
           {.family = Family::llama,
            .vocab = 128256,
            .rope_theta = 5e5,
            .rope_scaling = {.kind = RopeScaling::Kind::llama3,
                             .factor = 8,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4,
                             .original_max_position_embeddings = 8192}}),
      made("llama-3.1-70b", {80, 8192, 64, 8, 28672, 131072},
           {.family = Family::llama,
            .vocab = 128256,
            .rope_theta = 5e5,
            .rope_scaling = {.kind = RopeScaling::Kind::llama3,
                             .factor = 8,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4,
                             .original_max_position_embeddings = 8192}}),
      made("qwen2.5-tiny", tiny, {.family = Family::qwen2, .qkv_bias = true}),
      made("qwen2.5-7b", {28, 3584, 28, 4, 18944, 131072},
           {.family = Family::qwen2,
            .vocab = 152064,
            .rope_theta = 1e6,
            .rms_eps = 1e-6,
            .qkv_bias = true}),
      made("qwen3-tiny", tiny, {.family = Family::qwen3, .qk_norm = true}),
      made("qwen3-8b", {36, 4096, 32, 8, 12288, 40960},
           {.family = Family::qwen3,
            .vocab = 151936,
            .rope_theta = 1e6,
            .rms_eps = 1e-6,
            .qk_norm = true}),
      made("smollm3-tiny", tiny,
           {.family = Family::smollm3, .tied = true, .rotated = three_of_four(tiny.layers)}),
      made("smollm3-3b", {36, 2048, 16, 4, 11008, 65536},
           {.family = Family::smollm3,
            .vocab = 128256,
            .rope_theta = 5e6,
            .rms_eps = 1e-6,
            .tied = true,
            .rotated = three_of_four(36)})};
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
