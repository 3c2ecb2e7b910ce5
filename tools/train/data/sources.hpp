// Reads the value of --data: which sources there are, of which kind, and with which weights.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace train {

enum class SourceKind {
  demo,
  synthetic,
  copy,
  alpaca_list,   // .json
  alpaca_lines,  // .jsonl
  text,          // .txt, .md
  token_file,    // .tok
  raw_ids,       // other files with --data-type
};

struct SourceSpec {
  SourceKind kind = SourceKind::demo;
  std::string text;  // as given, without the weight; for error messages
  std::filesystem::path path;
  double weight = 1;
};

// Splits `data`, which DataSpec describes. Throws Error(invalid_argument) for an unknown kind of
// data or a weight that is not above 0.
std::vector<SourceSpec> parse_sources(const std::string& data, const std::string& data_type);

// The tokenizer of a run. `what` is auto, bytes, the path of a SentencePiece model, or ids:N: N ids
// without text. auto takes the ids of the first token file, and bytes if there is none. Throws like
// open_tokenizer() and TokenFile::open().
std::unique_ptr<const Tokenizer> tokenizer_for(const std::string& what, const std::string& data,
                                               const std::string& data_type);

}  // namespace train
