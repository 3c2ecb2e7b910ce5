// Tests of the presets, config.json files, parameter counts and FLOPs of models.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "atoll/error.hpp"
#include "model/config.hpp"
#include "model/params.hpp"
#include "train_model_file.hpp"

using atoll::Error;
using atoll::ErrorCode;
using train::ModelConfig;

namespace {

std::string error_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

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
  const std::string what = error_of([] { train::preset("mistral-8b"); }, ErrorCode::not_found);
  CHECK(what.find("mistral-8b") != std::string::npos);
  for (const std::string_view name : train::preset_names()) {
    CHECK(what.find(name) != std::string::npos);
  }
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

TEST_CASE("config.json is read, and written back") {
  const TemporaryFile file("config.json", valid);
  const ModelConfig config = train::read_hf_config(file.path());
  CHECK(config.hidden == 48);
  CHECK(config.head_dim == 16);
  CHECK(config.sliding_window == 0);
  const TemporaryFile again("again.json", hf_config_json(config, "float32"));
  ModelConfig copy = train::read_hf_config(again.path());
  copy.name = config.name;
  CHECK(copy == config);
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
      {"\"mistral\"", "\"llama\"", "model_type \"llama\"", ErrorCode::unsupported},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "not a multiple",
       ErrorCode::invalid_argument},
      {"\"head_dim\": 16", "\"head_dim\": 15", "head_dim = 15 is odd", ErrorCode::invalid_argument},
      {"\"hidden_size\": 48", "\"hidden_size\": -1", "hidden = -1 is not in [1, 1000000]",
       ErrorCode::invalid_argument},
      {"\"hidden_size\": 48,", "\"hidden_size\": 48", "not JSON at byte", ErrorCode::bad_data},
      {"\"hidden_size\": 48", "\"hidden_size\": 1e999", "a number is too large",
       ErrorCode::bad_data},
      {"\"mistral\"", "\"\\u001b[2Jllama\"", "model_type \"\\u001b[2Jllama\"",
       ErrorCode::unsupported},
  };
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    const TemporaryFile file("config.json", replaced(valid, c.from, c.to));
    const std::string what = error_of([&] { train::read_hf_config(file.path()); }, c.code);
    CHECK(what.find(c.expected) != std::string::npos);
    CHECK(what.find("config.json") != std::string::npos);
  }
  const TemporaryFile huge("config.json", std::string((1 << 20) + 1, ' '));
  error_of([&] { train::read_hf_config(huge.path()); }, ErrorCode::bad_data);
  error_of([] { train::read_hf_config("no-such-file.json"); }, ErrorCode::io);
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
}
