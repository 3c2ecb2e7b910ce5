// Converts text to token ids and back. Tokenizers are immutable, so any thread may use them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace train {

// SHA-256 of a tokenizer's file, or of the word "bytes"; all zeros if it is unknown.
using TokenizerDigest = std::array<std::byte, 32>;

class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  // Returns the ids of the text, without bos and eos.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  // Returns the text of the ids; bos, eos and pad produce none. Throws Error(invalid_argument) for
  // an id outside [0, vocab_size()).
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  std::int32_t vocab_size() const noexcept { return vocab_size_; }
  // The ids that begin and end a text; -1 if unknown, for example if the tokenizer cannot encode.
  std::int32_t bos() const noexcept { return bos_; }
  std::int32_t eos() const noexcept { return eos_; }

  // The id that fills short rows, where labels are ignored. It may equal eos().
  std::int32_t pad() const noexcept { return pad_; }

  // "bytes" for the built-in tokenizer, otherwise the file name of the model.
  std::string_view name() const noexcept { return name_; }

  const TokenizerDigest& digest() const noexcept { return digest_; }

  // The text of a tokenizer_config.json with which transformers returns bos and then the ids of
  // encode(); empty if transformers cannot open this tokenizer.
  virtual std::string transformers_config() const { return {}; }

 protected:
  std::string name_;
  std::int32_t vocab_size_ = 0, bos_ = -1, eos_ = -1, pad_ = 0;
  TokenizerDigest digest_{};
};

// The built-in tokenizer, which is lossless: ids 0-255 are bytes, 256 bos, 257 eos, 258 pad.
std::unique_ptr<const Tokenizer> byte_tokenizer();

// Loads a SentencePiece model. Throws Error: not_found; bad_data with the file name and, for a
// truncated or foreign file, the byte offset; unsupported if built without the library. If the
// model has no pad piece, pad() is eos.
std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file);

// Checks the outer layout of a SentencePiece model before the library parses it, because the
// library reports no byte offset. A model is a protobuf message with only length-delimited fields
// (1 pieces, 2 trainer_spec, 3 normalizer_spec, 4 self_test_data, 5 denormalizer_spec; see
// sentencepiece_model.proto). Throws Error(bad_data) with `file` and offset for a field that is cut
// off or of another kind, and when field 1, 2 or 3 is missing.
void check_sentencepiece_file(std::string_view bytes, std::string_view file);

// `what` is `bytes` or the path of a SentencePiece model.
std::unique_ptr<const Tokenizer> open_tokenizer(const std::string& what);

}  // namespace train
