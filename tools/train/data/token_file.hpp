// Token files: token ids that atoll-data has prepared, or raw ids of other trainers. A file is
// mapped into memory read-only, and only the pages of the documents that a batch needs are read, so
// files may be larger than memory. token_files.md documents the format. Nobody may change or
// truncate a file during a run: the kernel ends a process that reads a mapped page that no longer
// exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/file.hpp"

namespace train {

// How the ids of a file are stored, little-endian.
enum class TokenType : std::uint32_t {
  uint16 = 2,
  uint32 = 4,
};

// Accepts "uint16" and "uint32", and throws Error(invalid_argument) for other names.
TokenType token_type_from_name(std::string_view name);

inline constexpr std::size_t token_header_bytes = 256;

// How much of a file is read when it is opened.
enum class Verify {
  structure,  // the header, the bounds of documents and pieces
  content,    // also all ids and the fingerprint, unless the file is large
};

class TokenFile {
 public:
  // Maps a file with a header. Throws Error: not_found; io; bad_data, with file and byte, for a
  // file whose header, size, documents or pieces are not consistent. Files of at most
  // `verified_bytes` are also compared with their fingerprint, and all their ids with the
  // vocabulary.
  static TokenFile open(const std::filesystem::path& path, Verify verify = Verify::content);

  // Maps a file of ids without a header, as nanoGPT and others write them: one document. Ids must
  // be below `vocabulary`; files of at most `verified_bytes` are checked at once, others as they
  // are read.
  static TokenFile open_raw(const std::filesystem::path& path, TokenType type,
                            std::int32_t vocabulary);

  // Checks the bytes of a file in memory, which must outlive the result. Throws like open().
  static TokenFile parse(std::span<const std::byte> bytes, std::string name,
                         Verify verify = Verify::content);

  static constexpr std::uint64_t verified_bytes = std::uint64_t{256} << 20U;

  const std::string& name() const noexcept { return name_; }
  std::int32_t vocabulary() const noexcept { return vocabulary_; }
  // Empty if the file does not name an id that ends texts, or one that fills rows.
  std::optional<std::int32_t> eos() const noexcept { return eos_; }
  std::optional<std::int32_t> pad() const noexcept { return pad_; }
  // Whether documents are joined and cut into rows, as text is. Otherwise each document is a row.
  bool joined() const noexcept { return joined_; }
  bool masked() const noexcept { return mask_ != nullptr; }

  std::int64_t documents() const noexcept { return documents_; }
  std::int64_t tokens() const noexcept { return tokens_; }
  // Preconditions: 0 <= document < documents().
  std::int64_t begin(std::int64_t document) const noexcept;
  std::int64_t end(std::int64_t document) const noexcept { return begin(document + 1); }

  // Refuses ids that a smaller vocabulary of the model lacks: in the first `verified_bytes` at
  // once, in the rest when they are read. A tokenizer may have ids that no text uses. Throws
  // Error(invalid_argument) with file and token, at once or in read().
  void limit_ids(std::int32_t model_vocabulary);

  // Copies tokens `first` to `first + out.size()`, which must exist. Throws Error(bad_data), with
  // file and token, for an id outside the vocabulary.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Whether the token is a target of training. Precondition: 0 <= token < tokens().
  bool trained(std::int64_t token) const noexcept;
  // Number of trained tokens in [first, last).
  std::int64_t count_trained(std::int64_t first, std::int64_t last) const noexcept;

  // The bytes of the text of an id; empty if the file has no pieces.
  std::string_view piece(std::int32_t id) const noexcept;

  // Name and SHA-256 of the tokenizer's file; the digest is all zeros if it is unknown.
  const std::string& tokenizer_name() const noexcept { return tokenizer_name_; }
  const std::array<std::byte, 32>& tokenizer_digest() const noexcept { return tokenizer_digest_; }

  // Hash of the header, the size and parts of the file spread over its length.
  std::uint64_t fingerprint() const noexcept;

 private:
  TokenFile() = default;
  void read_header();
  void place_sections();
  void check_documents() const;
  void check_pieces();
  void verify_header() const;
  void verify_ids() const;
  void verify_content() const;
  void expect_random_reads() const noexcept;
  [[noreturn]] void refuse(std::uint64_t byte, std::string_view reason) const;

  std::string name_;
  std::optional<MappedFile> mapped_;
  std::span<const std::byte> bytes_;
  TokenType type_ = TokenType::uint16;
  std::int32_t vocabulary_ = 0;
  std::int32_t id_limit_ = std::numeric_limits<std::int32_t>::max();
  std::optional<std::int32_t> eos_, pad_;
  bool joined_ = false;
  bool has_mask_ = false, want_pieces_ = false;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
  // Sections of the file; null if absent.
  const std::byte* ids_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* mask_ = nullptr;
  const std::byte* pieces_ = nullptr;  // vocabulary + 1 offsets of 4 bytes, then each id's text
  std::string tokenizer_name_;
  std::array<std::byte, 32> tokenizer_digest_{};
};

// SHA-256 of the bytes.
std::array<std::byte, 32> sha256(std::string_view bytes);

}  // namespace train
