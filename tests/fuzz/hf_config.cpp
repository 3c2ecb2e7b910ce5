// Fuzzes the reader of Hugging Face's config.json. An accepted model must survive being written and
// read again.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "atoll/error.hpp"
#include "model/hf_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  train::ModelConfig config;
  try {
    config = train::parse_hf_config(text, "config.json");
  } catch (const atoll::Error&) {
    return 0;
  }
  const std::string written = train::hf_config_json(config, "bfloat16");
  const auto again = train::parse_hf_config(written, "config.json");
  if (train::hf_config_json(again, "bfloat16") != written) std::abort();
  if (train::parameter_count(config) <= 0) std::abort();
  return 0;
}
