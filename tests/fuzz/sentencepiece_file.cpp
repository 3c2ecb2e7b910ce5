// Fuzzes the check of the outer layout of a tokenizer model. The check runs before SentencePiece
// parses the file.
#include "data/tokenizer.hpp"

#include <cstdint>

#include "atoll/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    train::check_sentencepiece_file({reinterpret_cast<const char*>(bytes), size}, "input");
  } catch (const atoll::Error&) {
  }
  return 0;
}
