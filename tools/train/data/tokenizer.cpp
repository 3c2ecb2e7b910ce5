#include "data/tokenizer.hpp"

#include "data/token_file.hpp"
#include "fail.hpp"

namespace train {
namespace {

constexpr std::int32_t bytes = 256;
constexpr std::int32_t bos_id = 256;
constexpr std::int32_t eos_id = 257;
constexpr std::int32_t pad_id = 258;
constexpr std::int32_t size = 259;

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < size, "byte tokenizer: token {} is not in [0, {})", id, size);
      if (id < bytes) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
    }
    return text;
  }

  std::int32_t vocab_size() const noexcept override { return size; }
  std::int32_t bos() const noexcept override { return bos_id; }
  std::int32_t eos() const noexcept override { return eos_id; }
  std::int32_t pad() const noexcept override { return pad_id; }
  std::string_view name() const noexcept override { return "bytes"; }
  TokenizerDigest digest() const noexcept override { return sha256("bytes"); }
};

}  // namespace

std::unique_ptr<const Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<const Tokenizer> open_tokenizer(const std::string& what) {
  require(!what.empty(), "tokenizer: use `bytes` or the path of a SentencePiece model");
  if (what == "bytes") return byte_tokenizer();
  return sentencepiece_tokenizer(what);
}

}  // namespace train
