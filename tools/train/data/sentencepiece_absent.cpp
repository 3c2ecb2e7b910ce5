// Replaces sentencepiece_tokenizer.cpp in builds without libsentencepiece.
#include <fmt/format.h>

#include "atoll/error.hpp"
#include "data/tokenizer.hpp"

namespace train {

std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file) {
  throw atoll::Error(atoll::ErrorCode::unsupported,
                     fmt::format("{}: this build lacks SentencePiece; use --tokenizer bytes or "
                                 "rebuild with libsentencepiece-dev",
                                 file.string()));
}

}  // namespace train
