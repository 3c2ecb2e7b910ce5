// Checks that atoll reads each config.json as transformers does. configs.py has recorded the
// results of transformers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "atoll/error.hpp"
#include "model/hf_config.hpp"
#include "model/rope.hpp"

namespace {

using nlohmann::json;
using train::ModelConfig;

json windows_of(const ModelConfig& config) {
  const json window = config.sliding_window > 0 ? json(config.sliding_window) : json(nullptr);
  return std::vector<json>(static_cast<std::size_t>(config.layers), window);
}

json rotated_of(const ModelConfig& config) {
  json rotated = json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    rotated.push_back(config.rotates(layer));
  }
  return rotated;
}

json meaning(const ModelConfig& config) {
  const bool is_yarn = config.rope_scaling.kind == train::RopeScaling::Kind::yarn;
  return {{"layers", config.layers},
          {"hidden", config.hidden},
          {"vocab", config.vocab},
          {"ffn", config.ffn},
          {"head_dim", config.head_dim},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"max_seq", config.max_seq},
          {"rms_eps", config.rms_eps},
          {"tied", config.tied},
          {"qkv_bias", config.qkv_bias},
          {"o_bias", config.o_bias},
          {"mlp_bias", config.mlp_bias},
          {"qk_norm", config.qk_norm},
          {"rotated", rotated_of(config)},
          {"frequencies", train::rope_frequencies(config)},
          {"windows", windows_of(config)},
          {"rope_scale", is_yarn ? config.rope_scaling.attention_factor : 1.0}};
}

// The tolerance is large because transformers computes frequencies in f32, where yarn subtracts
// numbers that are almost equal. A wrong term changes a frequency by a percent or more.
bool alike(const json& a, const json& b) {
  if (a.is_array() && b.is_array()) return std::ranges::equal(a, b, alike);
  if (!a.is_number() || !b.is_number()) return a == b;
  const auto x = a.get<double>(), y = b.get<double>();
  return std::abs(x - y) <= 5e-5 * std::abs(y);
}

// Whether all layers see the same keys. atoll's decoder supports no other models.
bool is_uniform(const json& means) {
  return std::ranges::adjacent_find(means.at("windows"), std::not_equal_to()) ==
         means.at("windows").end();
}

}  // namespace

TEST_CASE("atoll and transformers read config.json alike") {
  std::ifstream in(ATOLL_GOLDEN_DIR "/configs.json");
  const json forms = json::parse(in).at("forms");
  int compared = 0, refused = 0;
  for (const json& form : forms) {
    const std::string text = form.at("config").dump();
    CAPTURE(text);
    ModelConfig config;
    std::string failure;
    try {
      config = train::parse_hf_config(text, "config.json");
    } catch (const atoll::Error& error) {
      failure = error.what();
    }
    const json& means = form.at("means");
    if (!is_uniform(means)) {
      CHECK(failure == "config.json: a sliding window in some layers only is not supported");
      ++refused;
      continue;
    }
    CHECK(failure == "");
    if (!failure.empty()) continue;
    const json mine = meaning(config);
    REQUIRE(mine.size() == means.size());
    for (const auto& [field, value] : means.items()) {
      CAPTURE(field);
      CAPTURE(value.dump());
      CAPTURE(mine.at(field).dump());
      CHECK(alike(mine.at(field), value));
    }
    // atoll reads the same model from the config.json that it exports.
    ModelConfig again = train::parse_hf_config(hf_config_json(config, "float32"), "config.json");
    CHECK(again == config);
    ++compared;
  }
  CHECK(compared > 200);
  CHECK(refused > 10);
}
