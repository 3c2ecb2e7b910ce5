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
  explicit SentencePieceTokenizer(const std::filesystem::path& file) {
    name_ = file.filename().string();
    const std::string bytes = read_file(file, largest_model);
    digest_ = sha256(bytes);
    check_sentencepiece_file(bytes, file.string());
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok()) {
      fail(ErrorCode::bad_data, "{}: not a SentencePiece model: {}", file.string(),
           status.error_message());
    }
    vocab_size_ = processor_.GetPieceSize();
    bos_ = processor_.bos_id();
    eos_ = processor_.eos_id();
    pad_ = processor_.pad_id() >= 0 ? processor_.pad_id() : eos_;
    // Rows begin with bos and samples end with eos, so training needs both.
    if (bos_ < 0 || eos_ < 0) {
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
      require(id >= 0 && id < vocab_size_, "{}: token {} is not in [0, {})", name_, id,
              vocab_size_);
      if (!processor_.IsControl(id)) pieces.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(pieces, &text);
    if (!status.ok()) fail(ErrorCode::internal, "{}: {}", name_, status.error_message());
    return text;
  }

  // "legacy" keeps the space that SentencePiece puts before a text.
  std::string transformers_config() const override {
    auto config = nlohmann::ordered_json::object();
    config["tokenizer_class"] = "LlamaTokenizer";
    config["add_bos_token"] = true;
    config["add_eos_token"] = false;
    config["bos_token"] = processor_.IdToPiece(bos_);
    config["eos_token"] = processor_.IdToPiece(eos_);
    config["unk_token"] = processor_.IdToPiece(processor_.unk_id());
    config["pad_token"] = nullptr;
    if (processor_.pad_id() >= 0) config["pad_token"] = processor_.IdToPiece(processor_.pad_id());
    config["clean_up_tokenization_spaces"] = false;
    config["legacy"] = true;
    return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<const Tokenizer> sentencepiece_tokenizer(const std::filesystem::path& file) {
  return std::make_unique<SentencePieceTokenizer>(file);
}

}  // namespace train
