// Text to token ids and back. Tokenizers are immutable after they are made: any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace train {

class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  // Ids of the text alone: the caller places bos() and eos().
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  // The text of the ids; bos, eos and pad have none. Throws Error(invalid_argument) for an id
  // outside [0, vocab_size()).
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  virtual std::int32_t vocab_size() const noexcept = 0;
  virtual std::int32_t bos() const noexcept = 0;
  virtual std::int32_t eos() const noexcept = 0;

  // Fills the end of short rows, where labels are ignored; a valid id, not always one of its own.
  virtual std::int32_t pad() const noexcept = 0;

  // "bytes", or the file name of a model.
  virtual std::string_view name() const noexcept = 0;
};

// The embedded default: ids 0-255 are bytes, 256 bos, 257 eos, 258 pad. Loses nothing of any input.
std::unique_ptr<const Tokenizer> byte_tokenizer();

// A SentencePiece model file. Throws Error: not_found, or bad_data with file name and, for a
// truncated or foreign file, byte offset; unsupported when built without the library. Without a pad
// piece, pad() is eos.
std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file);

// `bytes`, or the path of a SentencePiece model.
std::unique_ptr<const Tokenizer> open_tokenizer(const std::string& what);

}  // namespace train
