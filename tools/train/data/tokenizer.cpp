#include "data/tokenizer.hpp"

#include "data/token_file.hpp"
#include "fail.hpp"

namespace train {
namespace {

constexpr std::int32_t bytes = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    name_ = "bytes";
    vocab_size_ = bytes + 3;
    bos_ = bytes;
    eos_ = bytes + 1;
    pad_ = bytes + 2;
    digest_ = sha256(name_);
  }

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
      require(id >= 0 && id < vocab_size_, "byte tokenizer: token {} is not in [0, {})", id,
              vocab_size_);
      if (id < bytes) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<const Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<const Tokenizer> open_tokenizer(const std::string& what) {
  require(!what.empty(), "tokenizer: use `bytes` or the path of a SentencePiece model");
  if (what == "bytes") return byte_tokenizer();
  return sentencepiece_tokenizer(what);
}

}  // namespace train
