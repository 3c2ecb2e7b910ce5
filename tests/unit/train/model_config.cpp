// Tests of the presets, config.json files, parameter counts and FLOPs of models.
#include <doctest/doctest.h>

#include <cstdlib>

#include "atoll/error.hpp"
#include "model/hf_config.hpp"
#include "model/hub_cache.hpp"
#include "model/params.hpp"
#include "unit/train/data_temporary.hpp"

using atoll::Error;
using atoll::ErrorCode;
using train::ModelConfig;
using train_test::failure_of;

namespace {

const std::string valid = R"({"model_type": "mistral", "hidden_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 80,
  "vocab_size": 97, "rope_theta": 10000.0, "rms_norm_eps": 1e-05, "sliding_window": null,
  "tie_word_embeddings": false, "max_position_embeddings": 128})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

std::int64_t sum_of_specs(const ModelConfig& config) {
  std::int64_t sum = 0;
  for (std::size_t unit = 0; unit < unit_count(config); ++unit) {
    for (const train::ParamSpec& spec : param_specs(config, unit)) sum += spec.count();
  }
  return sum;
}

}  // namespace

TEST_CASE("presets have the sizes they promise") {
  CHECK(parameter_count(train::preset("mistral-7b")) == 7'241'732'096);
  // The published models have these numbers of parameters.
  CHECK(parameter_count(train::preset("llama-3.1-8b")) == 8'030'261'248);
  CHECK(parameter_count(train::preset("llama-3.1-70b")) == 70'553'706'496);
  CHECK(parameter_count(train::preset("qwen2.5-7b")) == 7'615'616'512);
  CHECK(parameter_count(train::preset("qwen3-8b")) == 8'190'735'360);
  CHECK(parameter_count(train::preset("smollm3-3b")) == 3'075'098'624);
  CHECK(parameter_count(train::preset("mistral-tiny")) == 14'649'792);
  CHECK(parameter_count(train::preset("mistral-tiny", 260)) == 2'461'632);
  for (const std::string_view name : train::preset_names()) {
    CAPTURE(name);
    const ModelConfig config = train::preset(name);
    CHECK(sum_of_specs(config) == parameter_count(config));
    ModelConfig tied = config;
    tied.tied = true;
    CHECK(sum_of_specs(tied) == parameter_count(tied));
  }
}

TEST_CASE("an unknown model lists the known ones") {
  const auto failure = failure_of([] { train::preset("mistral-8b"); });
  CHECK(failure.code == ErrorCode::not_found);
  CHECK(failure.says("mistral-8b"));
  for (const std::string_view name : train::preset_names()) CHECK(failure.says(name));
}

TEST_CASE("units and parameters carry Hugging Face's names") {
  const ModelConfig config = train::preset("mistral-tiny");
  CHECK(unit_name(config, 0) == "embed");
  CHECK(unit_name(config, 3) == "layers.2");
  CHECK(unit_name(config, 7) == "head");
  CHECK(param_specs(config, 3).size() == 9);
  CHECK(param_specs(config, 3)[1].hf_name == "model.layers.2.self_attn.q_proj.weight");
  CHECK(param_specs(config, 7)[0].hf_name == "model.norm.weight");
  CHECK(param_specs(config, 7)[1].hf_name == "lm_head.weight");
  CHECK_THROWS_AS(param_specs(config, 8), Error);
}

TEST_CASE("what is written for each preset is read as the same model") {
  for (const std::string_view name : train::preset_names()) {
    CAPTURE(name);
    const ModelConfig config = train::preset(name);
    ModelConfig copy = train::parse_hf_config(hf_config_json(config, "bfloat16"), "config.json");
    copy.name = config.name;
    CHECK(copy == config);
  }
}

TEST_CASE("yarn allows the original positions times its factor") {
  const auto limit = [](const std::string& keys) {
    return position_limit(
        train::parse_hf_config(replaced(valid, R"("rope_theta": 10000.0)", keys), "config.json"));
  };
  CHECK(limit(R"("rope_theta": 1e4)") == 128);
  CHECK(limit(R"("rope_scaling": {"type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 128})") == 512);
  // The number of original positions is max_position_embeddings, unless a key gives it.
  CHECK(limit(R"("rope_scaling": {"type": "yarn", "factor": 4.0})") == 512);
  CHECK(limit(R"("rope_scaling": {"type": "yarn", "factor": 2.0,
    "original_max_position_embeddings": 32})") == 128);
  CHECK(limit(R"("original_max_position_embeddings": 100, "rope_scaling": {"type": "yarn",
    "factor": 2.0, "original_max_position_embeddings": 32})") == 200);
  CHECK(limit(R"("rope_scaling": {"type": "yarn", "factor": 9e8,
    "original_max_position_embeddings": 900000000})") == 1'000'000'000);
  CHECK(limit(R"("rope_scaling": {"type": "linear", "factor": 4.0})") == 128);
}

TEST_CASE("names of models on the Hub, and the cache's folder") {
  CHECK(train::is_hub_name("org/name"));
  CHECK(train::is_hub_name("Org-1/na.me_2@refs-1"));
  for (const char* wrong :
       {"name", "/name", "org/", "a/b/c", "org/..", "../name", "org/name@", "o g/n"}) {
    CAPTURE(wrong);
    CHECK(!train::is_hub_name(wrong));
  }
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/data/hf", 1);
  CHECK(train::hub_cache() == "/data/hf/hub");
  ::unsetenv("HF_HOME");
  ::setenv("XDG_CACHE_HOME", "/data/cache", 1);
  CHECK(train::hub_cache() == "/data/cache/huggingface/hub");
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(train::hub_cache().string().ends_with("/.cache/huggingface/hub"));
}

TEST_CASE("a wrong config.json is named with its key") {
  struct Case {
    const char *from, *to, *expected;
    ErrorCode code;
  };
  const Case cases[] = {
      {"\"vocab_size\": 97,", "", "\"vocab_size\" is missing", ErrorCode::bad_data},
      {"\"hidden_size\": 48", "\"hidden_size\": \"x\"", "\"hidden_size\" is not an integer",
       ErrorCode::bad_data},
      {"\"mistral\"", "\"gpt2\"",
       "model_type \"gpt2\": use one of \"mistral\", \"llama\", \"qwen2\", \"qwen3\", \"smollm3\"",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"attention_dropout\": 0.1",
       "attention_dropout 0.1: only 0 is supported", ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"hidden_act\": \"gelu\"", "hidden_act \"gelu\"",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"quantization_config\": {}", "quantization_config",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"rope_scaling\": {\"rope_type\": \"longrope\"}",
       "rope_type \"longrope\": use default, linear, dynamic, yarn or llama3",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"rope_scaling\": {\"rope_type\": \"linear\"}",
       "\"rope_scaling.factor\" is missing: it must be a number", ErrorCode::bad_data},
      {"\"mistral\"", "\"mistral\", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
       "\"rope_scaling.low_freq_factor\" is missing: it must be a number", ErrorCode::bad_data},
      {"\"mistral\"",
       "\"mistral\", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
       "\"low_freq_factor\": 4, \"high_freq_factor\": 1}",
       "high_freq_factor = 1 is not between low_freq_factor and 1e9", ErrorCode::invalid_argument},
      {"\"sliding_window\": null",
       "\"sliding_window\": 8, \"model_type\": \"qwen2\", \"use_sliding_window\": true, "
       "\"max_window_layers\": 1",
       "a sliding window in some layers only is not supported", ErrorCode::unsupported},
      {"\"mistral\"", "\"mistral\", \"layer_types\": [\"sliding_attention\", \"full_attention\"]",
       "layer_types: contradicts sliding_window, which gives no layer a window",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"qwen2\", \"layer_types\": [\"sliding_attention\", \"full_attention\"]",
       "layer_types: contradicts sliding_window and use_sliding_window, which gives no layer a "
       "window",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"qwen3\", \"layer_types\": []", "layer_types: must have 2 times",
       ErrorCode::unsupported},
      {"\"mistral\"", "\"qwen3\", \"layer_types\": \"full_attention\"",
       "layer_types: must have 2 times", ErrorCode::unsupported},
      {"\"mistral\"", "\"smollm3\", \"no_rope_layers\": [1]", "\"no_rope_layers\" is not a list",
       ErrorCode::bad_data},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "not a multiple",
       ErrorCode::invalid_argument},
      {"\"head_dim\": 16", "\"head_dim\": 15", "head_dim = 15 is odd", ErrorCode::invalid_argument},
      {"\"hidden_size\": 48", "\"hidden_size\": -1", "hidden_size = -1 is not in [1, 1000000]",
       ErrorCode::invalid_argument},
      {"\"hidden_size\": 48", "\"hidden_size\": 18446744073709551615",
       "\"hidden_size\" is too large", ErrorCode::bad_data},
      {"\"mistral\"",
       "\"mistral\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": \"2\"}",
       "\"rope_scaling.factor\" is not a number", ErrorCode::bad_data},
      {"\"hidden_size\": 48,", "\"hidden_size\": 48", "not whole JSON: wrong or cut off at byte",
       ErrorCode::bad_data},
      {"\"hidden_size\": 48", "\"hidden_size\": 1e999", "a number is too large",
       ErrorCode::bad_data},
      {"\"mistral\"", "\"\\u001b[2Jllama\"", "model_type \"\\u001b[2Jllama\"",
       ErrorCode::unsupported},
  };
  const train_test::TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    return failure_of([&] { train::read_hf_config(folder.write("config.json", text)); });
  };
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    const auto failure = read(replaced(valid, c.from, c.to));
    CHECK(failure.code == c.code);
    CHECK(failure.says(c.expected));
    CHECK(failure.says("config.json"));
  }
  CHECK(read(std::string((1 << 20) + 1, ' ')).code == ErrorCode::bad_data);
  CHECK(failure_of([] { train::read_hf_config("no-such-file.json"); }).code == ErrorCode::io);
}

TEST_CASE("operations: 2 per weight and token, half of the attention square, the window's band") {
  ModelConfig config = train::preset("mistral-tiny");
  const std::int64_t one[] = {512};
  const std::int64_t two[] = {512, 512};
  const double weights = 6.0 * (2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 512) + 192.0 * 32000;
  const double attention = 6 * 4 * (512.0 * 512 / 2) * 192;
  CHECK(matmul_flops(config, one) == doctest::Approx(2 * 512 * weights + attention));
  CHECK(matmul_flops(config, two) == doctest::Approx(2 * matmul_flops(config, one)));
  CHECK(training_flops(config, one) == 3 * matmul_flops(config, one));
  config.sliding_window = 100;
  const double band = 6 * 4 * (512.0 * 100 - 100 * 100 / 2) * 192;
  CHECK(matmul_flops(config, one) == doctest::Approx(2 * 512 * weights + band));
  // With adapters, frozen weights have no gradients, but the backward of attention counts whole.
  config.adapters = {.rank = 4, .alpha = 8, .targets = {"q_proj"}};
  const double adapters = static_cast<double>(train::adapter_count(config));
  CHECK(adapters > 0);
  CHECK(training_flops(config, one) ==
        doctest::Approx(2 * (2 * 512 * weights) + 3 * band + 6 * 512 * adapters));
}
