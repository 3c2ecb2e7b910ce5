#include "data/tokenizer.hpp"

#include "atoll/error.hpp"

namespace train {

std::unique_ptr<const Tokenizer> open_tokenizer(const std::string& what) {
  if (what.empty()) {
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       "tokenizer: name `bytes` or a SentencePiece model file");
  }
  if (what == "bytes") return byte_tokenizer();
  return sentencepiece_tokenizer(what);
}

}  // namespace train
