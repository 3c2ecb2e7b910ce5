#include "model/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "fail.hpp"

namespace train {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_config_bytes = std::size_t{1} << 20;
constexpr std::int64_t default_vocab = 32000;

// The values of a preset are in the order of ModelConfig's members.
const std::vector<ModelConfig>& presets() {
  static const std::vector<ModelConfig> all{
      {"mistral-tiny", 6, 192, 6, 2, 32, 512, default_vocab, 1e4, 1e-5, 0, false, 2048},
      {"mistral-mini", 8, 384, 6, 2, 64, 1024, default_vocab, 1e4, 1e-5, 0, false, 2048},
      {"mistral-small", 12, 768, 12, 4, 64, 2048, default_vocab, 1e4, 1e-5, 0, false, 4096},
      {"mistral-1b", 24, 2048, 16, 4, 128, 5632, default_vocab, 1e4, 1e-5, 4096, false, 8192},
      {"mistral-7b", 32, 4096, 32, 8, 128, 14336, default_vocab, 1e4, 1e-5, 4096, false, 32768}};
  return all;
}

// Returns text of a file in quotes and in ASCII, so that it cannot control a terminal.
std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', true); }

// Reads keys of one JSON object; every complaint names the file and the key.
class Reader {
 public:
  Reader(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  std::int64_t integer(const char* key) const {
    if (!present(key)) fail(ErrorCode::bad_data, "{}: \"{}\" is missing", file_, key);
    return integer_or(key, 0);
  }
  std::int64_t integer_or(const char* key, std::int64_t fallback) const {
    return get(key, fallback, &Json::is_number_integer, "an integer");
  }
  double number_or(const char* key, double fallback) const {
    return get(key, fallback, &Json::is_number, "a number");
  }
  bool boolean_or(const char* key, bool fallback) const {
    return get(key, fallback, &Json::is_boolean, "true or false");
  }
  std::string text_or(const char* key, const std::string& fallback) const {
    return get(key, fallback, &Json::is_string, "a string");
  }
  // Hugging Face writes null for "none".
  bool present(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  const std::string& file() const { return file_; }
  // Newer versions of transformers nest theta in "rope_parameters".
  double rope_theta() const {
    constexpr double fallback = 10000.0;
    if (!present("rope_parameters")) return number_or("rope_theta", fallback);
    const Json& nested = json_["rope_parameters"];
    if (!nested.is_object()) {
      fail(ErrorCode::bad_data, "{}: \"rope_parameters\" is not an object", file_);
    }
    const Reader inner(nested, file_);
    const std::string type = inner.text_or("rope_type", "default");
    if (type != "default") {
      fail(ErrorCode::unsupported, "{}: rope_type {} is not supported", file_, quoted(type));
    }
    return inner.number_or("rope_theta", fallback);
  }

 private:
  template <class T>
  T get(const char* key, const T& fallback, bool (Json::*is)() const noexcept,
        const char* kind) const {
    if (!present(key)) return fallback;
    const Json& value = json_[key];
    if (!(value.*is)()) fail(ErrorCode::bad_data, "{}: \"{}\" is not {}", file_, key, kind);
    return value.get<T>();
  }

  const Json& json_;
  std::string file_;
};

std::string read_file(const std::filesystem::path& file) {
  const std::string name = file.string();
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorCode::io, "cannot open {}", name);
  std::string text(max_config_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) fail(ErrorCode::io, "cannot read {}", name);
  if (text.size() > max_config_bytes) {
    fail(ErrorCode::bad_data, "{}: larger than {} bytes, so not a model's config.json", name,
         max_config_bytes);
  }
  return text;
}

Json parse_object(std::string_view text, const std::string& name) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::bad_data, "{}: not JSON at byte {}", name, error.byte);
  } catch (const Json::out_of_range&) {
    fail(ErrorCode::bad_data, "{}: a number is too large", name);
  }
  if (!json.is_object()) fail(ErrorCode::bad_data, "{}: not a JSON object at byte 0", name);
  return json;
}

void require_mistral(const Reader& reader) {
  const auto require = [&](const char* key, const std::string& only) {
    const std::string value = reader.text_or(key, only);
    if (value == only) return;
    fail(ErrorCode::unsupported, "{}: {} {}: only \"{}\" is supported", reader.file(), key,
         quoted(value), only);
  };
  require("model_type", "mistral");
  require("hidden_act", "silu");
  if (reader.present("rope_scaling")) {
    fail(ErrorCode::unsupported, "{}: rope_scaling is not supported", reader.file());
  }
}

double attended_pairs(double length, double window) {
  if (window <= 0 || window >= length) return length * length / 2;
  return window * length - window * window / 2;
}

}  // namespace

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

ModelConfig read_hf_config(const std::filesystem::path& file) {
  return parse_hf_config(read_file(file), file.string());
}

ModelConfig parse_hf_config(std::string_view text, const std::string& file) {
  const Json json = parse_object(text, file);
  const Reader reader(json, file);
  require_mistral(reader);
  ModelConfig config;
  config.name = file;
  config.layers = reader.integer("num_hidden_layers");
  config.hidden = reader.integer("hidden_size");
  config.heads = reader.integer("num_attention_heads");
  config.kv_heads = reader.integer_or("num_key_value_heads", config.heads);
  const std::int64_t by_division = config.heads > 0 ? config.hidden / config.heads : 0;
  config.head_dim = reader.integer_or("head_dim", by_division);
  config.ffn = reader.integer("intermediate_size");
  config.vocab = reader.integer("vocab_size");
  config.rope_theta = reader.rope_theta();
  config.rms_eps = reader.number_or("rms_norm_eps", 1e-6);
  config.sliding_window = reader.integer_or("sliding_window", 0);
  config.tied = reader.boolean_or("tie_word_embeddings", false);
  config.max_seq = reader.integer_or("max_position_embeddings", 4096);
  validate(config);
  return config;
}

std::string hf_config_json(const ModelConfig& config, std::string_view torch_dtype) {
  // Not null at first: if an allocation fails while nlohmann's library turns a null value into an
  // object, the value is invalid, and cannot even be destroyed.
  auto json = nlohmann::ordered_json::object();
  json["architectures"] = {"MistralForCausalLM"};
  json["model_type"] = "mistral";
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden;
  json["intermediate_size"] = config.ffn;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab;
  json["rope_theta"] = config.rope_theta;
  json["rms_norm_eps"] = config.rms_eps;
  json["max_position_embeddings"] = config.max_seq;
  json["tie_word_embeddings"] = config.tied;
  json["torch_dtype"] = torch_dtype;
  json["sliding_window"] = nullptr;
  if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
  return json.dump(2) + "\n";
}

void validate(const ModelConfig& config) {
  constexpr std::int64_t million = 1'000'000;
  const auto within = [&](std::string_view field, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
    require(value >= low && value <= high, "model {}: {} = {} is not in [{}, {}]", config.name,
            field, value, low, high);
  };
  within("layers", config.layers, 1, 1000);
  within("hidden", config.hidden, 1, million);
  within("heads", config.heads, 1, 10'000);
  within("kv_heads", config.kv_heads, 1, config.heads);
  within("head_dim", config.head_dim, 2, 10'000);
  within("ffn", config.ffn, 1, million);
  within("vocab", config.vocab, 2, 16 * million);
  within("sliding_window", config.sliding_window, 0, 1000 * million);
  within("max_seq", config.max_seq, 1, 1000 * million);
  require(config.heads % config.kv_heads == 0,
          "model {}: heads = {} is not a multiple of kv_heads = {}", config.name, config.heads,
          config.kv_heads);
  require(config.head_dim % 2 == 0, "model {}: head_dim = {} is odd", config.name, config.head_dim);
  require(config.rope_theta > 0.0 && config.rope_theta < 1e12,
          "model {}: rope_theta = {} is not in (0, 1e12)", config.name, config.rope_theta);
  require(config.rms_eps >= 0.0 && config.rms_eps < 1.0, "model {}: rms_eps = {} is not in [0, 1)",
          config.name, config.rms_eps);
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t attention =
      2 * config.hidden * config.query_width() + 2 * config.hidden * config.kv_width();
  const std::int64_t layer = attention + 3 * config.hidden * config.ffn + 2 * config.hidden;
  const std::int64_t tables = (config.tied ? 1 : 2) * config.vocab * config.hidden;
  return config.layers * layer + tables + config.hidden;
}

double matmul_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  const auto hidden = static_cast<double>(config.hidden);
  const auto queries = static_cast<double>(config.query_width());
  const auto layers = static_cast<double>(config.layers);
  const double layer_weights = 2 * hidden * queries +
                               2 * hidden * static_cast<double>(config.kv_width()) +
                               3 * hidden * static_cast<double>(config.ffn);
  const double weights = layers * layer_weights + hidden * static_cast<double>(config.vocab);
  double flops = 0;
  for (const std::int64_t length : lengths) {
    const auto tokens = static_cast<double>(length);
    const double pairs = attended_pairs(tokens, static_cast<double>(config.sliding_window));
    flops += 2 * tokens * weights + 4 * layers * pairs * queries;
  }
  return flops;
}

double training_flops(const ModelConfig& config, std::span<const std::int64_t> lengths) {
  return 3 * matmul_flops(config, lengths);
}

}  // namespace train
