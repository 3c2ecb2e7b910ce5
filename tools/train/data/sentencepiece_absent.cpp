// Replaces sentencepiece_tokenizer.cpp in builds without libsentencepiece.

#include "data/tokenizer.hpp"
#include "fail.hpp"

namespace train {

std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file) {
  fail(ErrorCode::unsupported,
       "{}: this build lacks SentencePiece; use --tokenizer bytes or rebuild with "
       "libsentencepiece-dev",
       file.string());
}

}  // namespace train
