// Hugging Face's config.json of the families in config.hpp.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "model/config.hpp"

namespace train {

// Reads a config.json (at most 1 MiB) in the formats of transformers 4 and 5. Absent keys have the
// defaults of transformers 5, except vocab_size and the sizes of layers, which must be there.
// Throws Error(io, bad_data or unsupported) that names the file and the key, or the byte of a
// syntax error. ModelConfig::name is the file.
ModelConfig read_hf_config(const std::filesystem::path& file);
// Like read_hf_config(), for the text of a file; `file` is its name in errors and in the result.
ModelConfig parse_hf_config(std::string_view text, const std::string& file);

// Writes a config.json that transformers 4 and 5 read; `dtype` is "float32" or "bfloat16".
std::string hf_config_json(const ModelConfig& config, std::string_view dtype);

}  // namespace train
