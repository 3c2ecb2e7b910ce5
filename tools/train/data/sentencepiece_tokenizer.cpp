#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "data/file.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer.hpp"
#include "fail.hpp"

namespace train {
namespace {

// Mistral's tokenizer model has 0.5 MB; models with large vocabularies have about 5 MB.
constexpr std::uintmax_t largest_model = 64U << 20U;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& file)
      : name_(file.filename().string()) {
    const std::string bytes = read_file(file, largest_model);
    digest_ = sha256(bytes);
    check_sentencepiece_file(bytes, file.string());
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok()) {
      fail(ErrorCode::bad_data, "{}: not a SentencePiece model: {}", file.string(),
           status.error_message());
    }
    // Rows begin with bos and samples end with eos, so training needs both.
    if (processor_.bos_id() < 0 || processor_.eos_id() < 0) {
      fail(ErrorCode::bad_data, "{}: the model has no bos or no eos piece", file.string());
    }
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) fail(ErrorCode::internal, "{}: {}", name_, status.error_message());
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> pieces;
    pieces.reserve(ids.size());
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < vocab_size(), "{}: token {} is not in [0, {})", name_, id,
              vocab_size());
      if (!processor_.IsControl(id)) pieces.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(pieces, &text);
    if (!status.ok()) fail(ErrorCode::internal, "{}: {}", name_, status.error_message());
    return text;
  }

  std::int32_t vocab_size() const noexcept override { return processor_.GetPieceSize(); }
  std::int32_t bos() const noexcept override { return processor_.bos_id(); }
  std::int32_t eos() const noexcept override { return processor_.eos_id(); }
  std::int32_t pad() const noexcept override {
    return processor_.pad_id() >= 0 ? processor_.pad_id() : processor_.eos_id();
  }
  std::string_view name() const noexcept override { return name_; }
  TokenizerDigest digest() const noexcept override { return digest_; }

  // "legacy" keeps the space that SentencePiece puts before a text.
  std::string transformers_config() const override {
    auto config = nlohmann::ordered_json::object();
    config["tokenizer_class"] = "LlamaTokenizer";
    config["add_bos_token"] = true;
    config["add_eos_token"] = false;
    config["bos_token"] = processor_.IdToPiece(processor_.bos_id());
    config["eos_token"] = processor_.IdToPiece(processor_.eos_id());
    config["unk_token"] = processor_.IdToPiece(processor_.unk_id());
    config["pad_token"] = nullptr;
    if (processor_.pad_id() >= 0) config["pad_token"] = processor_.IdToPiece(processor_.pad_id());
    config["clean_up_tokenization_spaces"] = false;
    config["legacy"] = true;
    return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  std::string name_;
  TokenizerDigest digest_{};
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file) {
  return std::make_unique<SentencePieceTokenizer>(file);
}

}  // namespace train
