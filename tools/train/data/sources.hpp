// Reads the value of --data: which sources there are, of which kind, and with which weights.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace train {

enum class SourceKind {
  demo,
  synthetic,
  copy,
  alpaca,      // a .json file: Alpaca, or records that atoll-data converts
  token_file,  // a .tok file
  raw_ids,     // token ids without a header: raw:FILE, or another ending with --data-type
  other,       // files that atoll-data converts
};

struct SourceSpec {
  SourceKind kind = SourceKind::demo;
  std::string text;    // the source as the user wrote it, without the weight; for error messages
  std::string ending;  // "jsonl" for jsonl:FILE, replaces the ending of FILE; "" without a prefix
  std::filesystem::path path;
  double weight = 1;
};

bool is_generated(const SourceSpec& source) noexcept;

// Splits `data`, which DataSpec describes. A prefix may replace the ending of a file's name, as in
// jsonl:FILE. Throws Error(invalid_argument) for an unknown kind of data or a weight that is not
// above 0.
std::vector<SourceSpec> parse_sources(const std::string& data, const std::string& data_type);

// Returns `data` with each source replaced by text(source), and with the same weights.
std::string replace_sources(const std::string& data, const std::string& data_type,
                            const std::function<std::string(const SourceSpec&)>& text);

// The tokenizer of a run. `what` is auto, bytes, the path of a SentencePiece model, that of a
// tokenizer.json, or ids:N: N ids without text. auto takes the ids of the first token file, and
// bytes if there is none. A tokenizer.json needs a token file that was made with it. Throws like
// open_tokenizer() and TokenFile::open().
std::unique_ptr<const Tokenizer> tokenizer_for(const std::string& what, const std::string& data,
                                               const std::string& data_type);

}  // namespace train
