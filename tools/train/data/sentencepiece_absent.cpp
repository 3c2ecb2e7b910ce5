// Stands in for sentencepiece_tokenizer.cpp in a build without libsentencepiece.
#include <fmt/format.h>

#include "atoll/error.hpp"
#include "data/tokenizer.hpp"

namespace train {

std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file) {
  throw atoll::Error(atoll::ErrorCode::unsupported,
                     fmt::format("{}: this build has no SentencePiece; the tokenizer `bytes` works",
                                 file.string()));
}

}  // namespace train
