#include "model/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "fail.hpp"
#include "json_reader.hpp"

namespace train {
namespace {

using Json = nlohmann::json;

constexpr std::uintmax_t max_config_bytes = std::uintmax_t{1} << 20;

template <class... Args>
[[noreturn]] void unsupported(const JsonReader& reader, fmt::format_string<Args...> text,
                              Args&&... args) {
  fail(ErrorCode::unsupported, "{}: {}", reader.file(),
       fmt::format(text, std::forward<Args>(args)...));
}

// The values of absent keys in transformers 5. A `kv_heads` of 0 means as many as there are query
// heads.
struct Defaults {
  Family family;
  const char* architecture;
  std::int64_t kv_heads;
  std::int64_t max_seq;
  double rope_theta = 10000;
  bool tied = false;
};
constexpr Defaults families[] = {
    {Family::mistral, "MistralForCausalLM", 8, 131072},
    {Family::llama, "LlamaForCausalLM", 0, 2048},
    {Family::qwen2, "Qwen2ForCausalLM", 32, 32768},
    {Family::qwen3, "Qwen3ForCausalLM", 32, 32768},
    {Family::smollm3, "SmolLM3ForCausalLM", 4, 32768, 2e6, true},
};

const Defaults& defaults_of(const JsonReader& reader) {
  const std::string type = reader.text_or("model_type", "");
  const auto* found = std::ranges::find(
      families, type, [](const Defaults& one) { return std::string(name(one.family)); });
  if (found != std::end(families)) return *found;
  std::string known;
  for (const Defaults& one : families) {
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name(one.family));
  }
  if (type.empty()) {
    fail(ErrorCode::bad_data,
         "{}: \"model_type\" is missing, so this may not be the config.json of a model; it must be "
         "one of {}",
         reader.file(), known);
  }
  unsupported(reader, "model_type {}: use one of {}", quoted(type), known);
}

// Refuses settings that change a model's results and that the decoder does not have.
void refuse_other_models(const JsonReader& reader) {
  const std::string act = reader.text_or("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    unsupported(reader, "hidden_act {}: only \"silu\" (also called \"swish\") is supported",
                quoted(act));
  }
  const double dropout = reader.number_or("attention_dropout", 0);
  if (dropout != 0) {
    unsupported(reader, "attention_dropout {}: only 0 is supported", dropout);
  }
  if (reader.number_or("partial_rotary_factor", 1) != 1) {
    unsupported(reader, "partial_rotary_factor: only 1 is supported");
  }
  if (reader.present("quantization_config")) {
    unsupported(reader,
                "quantization_config: quantized weights are not supported; use the "
                "model's original weights");
  }
}

double yarn_attention_factor(const JsonReader& rope, double factor) {
  if (rope.present("attention_factor")) return rope.number_or("attention_factor", 1);
  const auto scale = [&](double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  const double mscale = rope.number_or("mscale", 0), all = rope.number_or("mscale_all_dim", 0);
  return mscale != 0 && all != 0 ? scale(mscale) / scale(all) : scale(1);
}

// `config` is the whole object. A number of original positions beside the settings of the rotary
// embedding takes precedence over one inside them, as in transformers.
RopeScaling read_scaling(const JsonReader& config, const JsonReader& rope, std::int64_t max_seq) {
  using Kind = RopeScaling::Kind;
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  RopeScaling scaling;
  if (type == "default") return scaling;
  const Kind kinds[] = {Kind::linear, Kind::dynamic, Kind::yarn, Kind::llama3};
  const auto* kind =
      std::ranges::find(kinds, type, [](Kind one) { return std::string(name(one)); });
  if (kind == std::end(kinds)) {
    unsupported(rope, "rope_type {}: use default, linear, dynamic, yarn or llama3", quoted(type));
  }
  scaling.kind = *kind;
  const bool yarn = scaling.kind == Kind::yarn;
  if (!yarn) scaling.factor = rope.number("factor");
  if (!yarn && scaling.kind != Kind::llama3) return scaling;
  constexpr const char* original = "original_max_position_embeddings";
  scaling.original_max_position_embeddings =
      config.integer_or(original, rope.integer_or(original, max_seq));
  if (!yarn) {
    scaling.low_freq_factor = rope.number("low_freq_factor");
    scaling.high_freq_factor = rope.number("high_freq_factor");
    return scaling;
  }
  scaling.factor = rope.number_or(
      "factor", static_cast<double>(max_seq) /
                    std::max(1.0, static_cast<double>(scaling.original_max_position_embeddings)));
  const auto or_default = [&](const char* key, double fallback) {
    const double value = rope.number_or(key, 0);
    return value == 0 ? fallback : value;
  };
  scaling.beta_fast = or_default("beta_fast", 32);
  scaling.beta_slow = or_default("beta_slow", 1);
  // transformers takes a null as false, but an absent key as true.
  scaling.truncate = rope.boolean_or("truncate", !rope.contains("truncate"));
  scaling.attention_factor = yarn_attention_factor(rope, scaling.factor);
  return scaling;
}

// Transformers 5 writes "rope_parameters", which contains theta. Older versions write "rope_theta"
// and "rope_scaling"; if both are there, transformers reads "rope_scaling".
void read_rope(const JsonReader& reader, const Defaults& defaults, ModelConfig& config) {
  config.rope_theta = reader.number_or("rope_theta", defaults.rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.present(key)) continue;
    const JsonReader rope = reader.object(key);
    if (rope.json().empty()) continue;
    if (rope.present("full_attention") || rope.present("sliding_attention")) {
      unsupported(reader, "{}: a different rotary embedding in some layers is not supported", key);
    }
    if (rope.number_or("partial_rotary_factor", 1) != 1) {
      unsupported(reader, "{}: partial_rotary_factor: only 1 is supported", key);
    }
    config.rope_theta = rope.number_or("rope_theta", config.rope_theta);
    config.rope_scaling = read_scaling(reader, rope, config.max_seq);
    return;
  }
}

// Whether "layer_types" gives each layer a window.
std::vector<bool> listed_windows(const JsonReader& reader, std::int64_t layers) {
  std::vector<bool> windowed;
  const Json& types = reader["layer_types"];
  for (const Json& type : types.is_array() ? types : Json::array()) {
    if (type != "sliding_attention" && type != "full_attention") break;
    windowed.push_back(type == "sliding_attention");
  }
  if (windowed.size() != types.size() || windowed.size() != static_cast<std::size_t>(layers)) {
    unsupported(reader,
                "layer_types: must have {} times \"full_attention\" or \"sliding_attention\", one "
                "for each layer",
                layers);
  }
  return windowed;
}

// Whether each layer has a window without "layer_types", if the model uses one at all. SmolLM3 has
// windows where it has no rotary embedding.
std::vector<bool> usual_windows(const JsonReader& reader, const ModelConfig& config) {
  std::vector<bool> windowed;
  const std::int64_t first =
      config.family == Family::mistral ? 0 : reader.integer_or("max_window_layers", 28);
  for (std::int64_t n = 0; n < config.layers; ++n) {
    windowed.push_back(config.family == Family::smollm3 ? !config.rotates(n) : n >= first);
  }
  return windowed;
}

// In transformers 5, "layer_types" decides the windows of Qwen and SmolLM3 if it is there. Mistral
// ignores it, so a list that differs is refused.
void read_window(const JsonReader& reader, ModelConfig& config) {
  if (config.family == Family::llama) return;
  const bool is_mistral = config.family == Family::mistral;
  const bool is_used = is_mistral || reader.boolean_or("use_sliding_window", false);
  const std::int64_t usual = config.family == Family::smollm3 ? 0 : 4096;
  const std::int64_t given =
      reader.contains("sliding_window") ? reader.integer_or("sliding_window", 0) : usual;
  const std::int64_t window = is_used ? given : 0;
  std::vector<bool> windowed(static_cast<std::size_t>(config.layers), false);
  if (window != 0) windowed = usual_windows(reader, config);
  if (reader.present("layer_types")) {
    auto listed = listed_windows(reader, config.layers);
    const bool has_any = std::ranges::find(listed, true) != listed.end();
    if ((has_any && window == 0) || (is_mistral && listed != windowed)) {
      unsupported(reader,
                  "layer_types: contradicts sliding_window{}, which gives {} a window: correct one "
                  "of them",
                  is_mistral ? "" : " and use_sliding_window",
                  window == 0 ? "no layer" : "every layer");
    }
    windowed = std::move(listed);
  }
  if (std::ranges::find(windowed, true) == windowed.end()) return;
  if (std::ranges::find(windowed, false) != windowed.end()) {
    unsupported(reader, "a sliding window in some layers only is not supported");
  }
  config.sliding_window = window;
}

void read_rotated_layers(const JsonReader& reader, ModelConfig& config) {
  if (config.family != Family::smollm3) return;
  if (!reader.present("no_rope_layers")) {
    const std::int64_t interval = reader.integer_or("no_rope_layer_interval", 4);
    require(interval >= 1, "{}: \"no_rope_layer_interval\" must be at least 1", reader.file());
    for (std::int64_t n = 1; n <= config.layers; ++n) config.rotated.push_back(n % interval != 0);
    return;
  }
  const Json& list = reader["no_rope_layers"];
  const bool fine = list.is_array() && list.size() >= static_cast<std::size_t>(config.layers) &&
                    std::ranges::all_of(list, [](const Json& one) { return one == 0 || one == 1; });
  if (!fine) {
    fail(ErrorCode::bad_data,
         "{}: \"no_rope_layers\" is not a list with 1 (rotary embedding) or 0 (none) for each of "
         "{} layers",
         reader.file(), config.layers);
  }
  for (std::int64_t n = 0; n < config.layers; ++n) {
    config.rotated.push_back(list[static_cast<std::size_t>(n)] == 1);
  }
}

void read_biases(const JsonReader& reader, ModelConfig& config) {
  if (config.family == Family::qwen2) config.qkv_bias = true;
  if (config.family == Family::mistral || config.family == Family::qwen2) return;
  config.qkv_bias = config.o_bias = reader.boolean_or("attention_bias", false);
  if (config.family != Family::qwen3) config.mlp_bias = reader.boolean_or("mlp_bias", false);
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& file) {
  return parse_hf_config(read_text(file, max_config_bytes), file.string());
}

ModelConfig parse_hf_config(std::string_view text, const std::string& file) {
  const Json json = parse_object(text, file);
  const JsonReader reader(json, file);
  const Defaults& defaults = defaults_of(reader);
  refuse_other_models(reader);
  ModelConfig config;
  config.name = file;
  config.family = defaults.family;
  config.layers = reader.integer("num_hidden_layers");
  require(config.layers >= 1 && config.layers <= 1000,
          "{}: num_hidden_layers = {} is not in [1, 1000]", file, config.layers);
  config.hidden = reader.integer("hidden_size");
  config.heads = reader.integer("num_attention_heads");
  const bool has_kv_heads = reader.contains("num_key_value_heads") || defaults.kv_heads == 0;
  config.kv_heads =
      has_kv_heads ? reader.integer_or("num_key_value_heads", config.heads) : defaults.kv_heads;
  const std::int64_t by_division = config.heads > 0 ? config.hidden / config.heads : 0;
  const bool usual = config.family == Family::qwen3 && !reader.contains("head_dim");
  config.head_dim = usual ? 128 : reader.integer_or("head_dim", by_division);
  config.ffn = reader.integer("intermediate_size");
  config.vocab = reader.integer("vocab_size");
  config.rms_eps = reader.number_or("rms_norm_eps", 1e-6);
  config.tied = reader.boolean_or("tie_word_embeddings", defaults.tied);
  config.max_seq = reader.integer_or("max_position_embeddings", defaults.max_seq);
  config.qk_norm = config.family == Family::qwen3;
  read_rope(reader, defaults, config);
  read_rotated_layers(reader, config);
  read_window(reader, config);
  read_biases(reader, config);
  validate(config);
  return config;
}

namespace {

nlohmann::ordered_json rope_json(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  auto json = nlohmann::ordered_json::object();
  json["rope_type"] = name(rope.kind);
  json["rope_theta"] = config.rope_theta;
  if (rope.kind == RopeScaling::Kind::none) return json;
  json["factor"] = rope.factor;
  const bool yarn = rope.kind == RopeScaling::Kind::yarn;
  if (yarn || rope.kind == RopeScaling::Kind::llama3) {
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.kind == RopeScaling::Kind::llama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (!yarn) return json;
  json["attention_factor"] = rope.attention_factor;
  json["beta_fast"] = rope.beta_fast;
  json["beta_slow"] = rope.beta_slow;
  json["truncate"] = rope.truncate;
  return json;
}

// Writes the keys that only some families have.
void write_family(nlohmann::ordered_json& json, const ModelConfig& config) {
  if (config.family == Family::mistral) {
    json["sliding_window"] = nullptr;
    if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
    return;
  }
  if (config.family != Family::qwen2) json["attention_bias"] = config.qkv_bias;
  if (config.family == Family::llama || config.family == Family::smollm3) {
    json["mlp_bias"] = config.mlp_bias;
  }
  if (config.family == Family::llama) return;
  json["use_sliding_window"] = config.sliding_window > 0;
  json["sliding_window"] = nullptr;
  if (config.sliding_window > 0) {
    json["sliding_window"] = config.sliding_window;
    json["max_window_layers"] = 0;
    json["layer_types"] =
        std::vector<std::string>(static_cast<std::size_t>(config.layers), "sliding_attention");
  }
  if (config.family != Family::smollm3) return;
  // These keys default to ids of SmolLM3's tokenizer, up to 128004, which small vocabularies lack.
  if (config.vocab <= 128004) {
    for (const char* key : {"pad_token_id", "bos_token_id", "eos_token_id"}) json[key] = nullptr;
  }
  auto rotated = nlohmann::ordered_json::array();
  for (std::int64_t n = 0; n < config.layers; ++n) rotated.push_back(config.rotates(n) ? 1 : 0);
  json["no_rope_layers"] = std::move(rotated);
}

}  // namespace

std::string hf_config_json(const ModelConfig& config, std::string_view dtype) {
  // Not null at first: if an allocation fails while nlohmann's library turns a null value into an
  // object, the value is invalid, and cannot even be destroyed.
  auto json = nlohmann::ordered_json::object();
  const auto* family = std::ranges::find(families, config.family, &Defaults::family);
  json["architectures"] = {family->architecture};
  json["model_type"] = name(config.family);
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden;
  json["intermediate_size"] = config.ffn;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab;
  json["rms_norm_eps"] = config.rms_eps;
  json["max_position_embeddings"] = config.max_seq;
  json["tie_word_embeddings"] = config.tied;
  json["attention_dropout"] = 0.0;
  // Of each pair of keys, transformers 5 reads the first, and transformers 4 the others.
  json["rope_parameters"] = rope_json(config);
  json["rope_theta"] = config.rope_theta;
  if (config.rope_scaling.kind != RopeScaling::Kind::none) {
    json["rope_scaling"] = json["rope_parameters"];
  }
  json["dtype"] = dtype;
  json["torch_dtype"] = dtype;
  write_family(json, config);
  return json.dump(2) + "\n";
}

}  // namespace train
