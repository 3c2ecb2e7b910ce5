#include "data/token_file.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "data/random.hpp"
#include "fail.hpp"

namespace train {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::string_view magic = "ATOLLTOK";
constexpr std::uint32_t known_version = 2;  // version 1 has no fingerprint of the header
constexpr std::uint32_t mask_flag = 1, joined_flag = 2, pieces_flag = 4;
constexpr std::uint32_t no_token = 0xffffffff;

// Byte offsets of the header's fields.
constexpr std::size_t version_at = 8, flags_at = 12, type_at = 16, vocabulary_at = 20;
constexpr std::size_t pad_at = 24, eos_at = 28, documents_at = 32, tokens_at = 40;
constexpr std::size_t fingerprint_at = 48, digest_at = 64, name_at = 96,
                      header_fingerprint_at = 160;
constexpr std::size_t fingerprint_bytes = 16, name_bytes = 64, word = 8;

constexpr std::uint64_t padded_to_word(std::uint64_t bytes) noexcept {
  return (bytes + word - 1) / word * word;
}

template <class T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::array<std::byte, fingerprint_bytes> fingerprint_of(std::span<const std::byte> bytes) {
  std::array<std::byte, fingerprint_bytes> digest{};
  crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), digest.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr,
                     0);
  return digest;
}

// Replaces unprintable characters: names come from untrusted files and end up in logs.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, text.find('\0'))) {
    shown.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return shown;
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> out) noexcept {
  for (std::size_t i = 0; i < out.size(); ++i) {
    // An id above 2^31 - 1 becomes negative, which the check of the vocabulary finds.
    out[i] = static_cast<std::int32_t>(load<T>(from + i * sizeof(T)));
  }
}

}  // namespace

TokenType token_type_from_name(std::string_view name) {
  if (name == "uint16") return TokenType::uint16;
  require(name == "uint32", "--data-type {}: use uint16 or uint32", name);
  return TokenType::uint32;
}

std::array<std::byte, 32> sha256(std::string_view bytes) {
  std::array<std::byte, 32> digest{};
  static_assert(sizeof digest == crypto_hash_sha256_BYTES);
  crypto_hash_sha256(reinterpret_cast<unsigned char*>(digest.data()),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return digest;
}

TokenFile TokenFile::open(const std::filesystem::path& path, Verify verify) {
  MappedFile mapped(path);
  TokenFile file = parse(mapped.bytes(), path.string(), verify);
  file.mapped_.emplace(std::move(mapped));
  file.expect_random_reads();
  return file;
}

TokenFile TokenFile::open_raw(const std::filesystem::path& path, TokenType type,
                              std::int32_t vocabulary) {
  TokenFile file;
  file.mapped_.emplace(path);
  file.name_ = path.string();
  file.bytes_ = file.mapped_->bytes();
  file.type_ = type;
  file.vocabulary_ = vocabulary;
  file.joined_ = true;
  file.ids_ = file.bytes_.data();
  const auto width = static_cast<std::size_t>(type);
  if (file.bytes_.size() % width != 0) {
    fail(ErrorCode::bad_data,
         "{}: {} bytes are no whole number of ids of {} bytes: is --data-type right?", file.name_,
         file.bytes_.size(), width);
  }
  file.documents_ = 1;
  file.tokens_ = static_cast<std::int64_t>(file.bytes_.size() / width);
  file.verify_content();
  file.expect_random_reads();
  return file;
}

TokenFile TokenFile::parse(std::span<const std::byte> bytes, std::string name, Verify verify) {
  TokenFile file;
  file.bytes_ = bytes;
  file.name_ = std::move(name);
  file.read_header();
  file.place_sections();
  file.check_documents();
  file.check_pieces();
  file.verify_header();
  if (verify == Verify::content) file.verify_content();
  return file;
}

void TokenFile::refuse(std::uint64_t byte, std::string_view reason) const {
  fail(ErrorCode::bad_data, "{}: byte {}: {}; make the file again with atoll-data", name_, byte,
       reason);
}

void TokenFile::read_header() {
  const auto magic_bytes = std::as_bytes(std::span(magic));
  if (bytes_.size() < magic.size() ||
      !std::ranges::equal(bytes_.first(magic.size()), magic_bytes)) {
    fail(ErrorCode::bad_data,
         "{}: byte 0: not a token file of atoll-data; for ids without a header, add --data-type "
         "uint16 or uint32",
         name_);
  }
  if (bytes_.size() < token_header_bytes) refuse(bytes_.size(), "the file ends inside its header");
  const auto small = [&](std::size_t at) { return load<std::uint32_t>(bytes_.data() + at); };
  const std::uint32_t version = small(version_at);
  if (version < 1 || version > known_version) {
    refuse(version_at, fmt::format("version {}, but this program reads versions 1 to {}", version,
                                   known_version));
  }
  const std::uint32_t flags = small(flags_at);
  if ((flags & ~(mask_flag | joined_flag | pieces_flag)) != 0) refuse(flags_at, "unknown flags");
  has_mask_ = (flags & mask_flag) != 0;
  joined_ = (flags & joined_flag) != 0;
  want_pieces_ = (flags & pieces_flag) != 0;
  const std::uint32_t width = small(type_at);
  if (width != 2 && width != 4) refuse(type_at, fmt::format("ids of {} bytes", width));
  type_ = static_cast<TokenType>(width);
  const std::uint32_t vocabulary = small(vocabulary_at);
  if (vocabulary < 1 || vocabulary > std::numeric_limits<std::int32_t>::max()) {
    refuse(vocabulary_at, fmt::format("a vocabulary of {} tokens", vocabulary));
  }
  vocabulary_ = static_cast<std::int32_t>(vocabulary);
  const auto special = [&](std::size_t at) -> std::optional<std::int32_t> {
    if (small(at) == no_token) return std::nullopt;
    if (small(at) >= vocabulary) refuse(at, "a special id outside the vocabulary");
    return static_cast<std::int32_t>(small(at));
  };
  pad_ = special(pad_at);
  eos_ = special(eos_at);
  const std::size_t reserved_at =
      header_fingerprint_at + (version == known_version ? fingerprint_bytes : 0);
  const auto reserved = bytes_.subspan(reserved_at, token_header_bytes - reserved_at);
  if (std::ranges::any_of(reserved, [](std::byte b) { return b != std::byte{0}; })) {
    refuse(reserved_at, "unknown content in the header");
  }
  std::ranges::copy(bytes_.subspan(digest_at, tokenizer_digest_.size()), tokenizer_digest_.begin());
  tokenizer_name_ = printable({reinterpret_cast<const char*>(bytes_.data()) + name_at, name_bytes});
}

// Computes where each section begins. The sections must fill the file exactly.
void TokenFile::place_sections() {
  const auto documents = load<std::uint64_t>(bytes_.data() + documents_at);
  const auto tokens = load<std::uint64_t>(bytes_.data() + tokens_at);
  // These bounds also keep the sums below from overflowing.
  if (tokens < 1 || tokens > bytes_.size()) refuse(tokens_at, fmt::format("{} tokens", tokens));
  if (documents < 1 || documents > std::min<std::uint64_t>(bytes_.size(), no_token)) {
    refuse(documents_at, fmt::format("{} documents", documents));
  }
  tokens_ = static_cast<std::int64_t>(tokens);
  documents_ = static_cast<std::int64_t>(documents);
  std::uint64_t at = token_header_bytes;
  const auto section = [&](std::uint64_t size) {
    const std::uint64_t start = at;
    at += size;
    if (at > bytes_.size()) {
      refuse(bytes_.size(), fmt::format("the file ends early: its header speaks of {} tokens in {} "
                                        "documents",
                                        tokens, documents));
    }
    return bytes_.data() + start;
  };
  ids_ = section(padded_to_word(tokens * static_cast<std::uint64_t>(type_)));
  offsets_ = section((documents + 1) * word);
  if (has_mask_) mask_ = section((tokens + 63) / 64 * word);
  if (want_pieces_) {
    pieces_ = section((static_cast<std::uint64_t>(vocabulary_) + 1) * 4);
  } else if (at != bytes_.size()) {
    refuse(at, "bytes after the last section");
  }
}

void TokenFile::check_documents() const {
  std::int64_t before = 0;
  for (std::int64_t d = 0; d <= documents_; ++d) {
    const std::int64_t offset = begin(d);
    if (offset < before || offset > tokens_ || (d == 0 && offset != 0)) {
      refuse(static_cast<std::uint64_t>(offsets_ - bytes_.data()) +
                 word * static_cast<std::uint64_t>(d),
             fmt::format("document {} begins at token {}, outside the file or before the previous "
                         "document",
                         d, offset));
    }
    before = offset;
  }
  if (before != tokens_) {
    refuse(static_cast<std::uint64_t>(offsets_ - bytes_.data()),
           "documents do not cover all tokens");
  }
}

void TokenFile::check_pieces() {
  if (!want_pieces_) return;
  const auto count = static_cast<std::size_t>(vocabulary_) + 1;
  const std::uint64_t start = static_cast<std::uint64_t>(pieces_ - bytes_.data());
  const std::uint64_t room = bytes_.size() - start - count * 4;
  std::uint32_t before = 0;
  for (std::size_t id = 0; id < count; ++id) {
    const auto offset = load<std::uint32_t>(pieces_ + id * 4);
    if (offset < before || offset > room) {
      refuse(start + id * 4, fmt::format("the text of id {} lies outside the file", id));
    }
    before = offset;
  }
  if (before != room) refuse(start + count * 4 + before, "bytes after the last section");
}

// Finds damage of the header that leaves valid values in its fields. Precondition: read_header().
void TokenFile::verify_header() const {
  if (load<std::uint32_t>(bytes_.data() + version_at) < known_version) return;
  const auto digest = fingerprint_of(bytes_.first(header_fingerprint_at));
  if (!std::ranges::equal(digest, bytes_.subspan(header_fingerprint_at, digest.size()))) {
    refuse(header_fingerprint_at, "the header does not have its fingerprint");
  }
}

// Checks the first ids; in a small file these are all ids. More would delay the start of a run.
void TokenFile::verify_ids() const {
  std::vector<std::int32_t> ids(std::size_t{1} << 14U);
  const auto last = std::min(
      tokens_, static_cast<std::int64_t>(verified_bytes) / static_cast<std::int64_t>(type_));
  for (std::int64_t first = 0; first < last; first += static_cast<std::int64_t>(ids.size())) {
    const auto count = std::min(static_cast<std::int64_t>(ids.size()), last - first);
    read(first, std::span(ids).first(static_cast<std::size_t>(count)));
  }
}

void TokenFile::limit_ids(std::int32_t model_vocabulary) {
  if (model_vocabulary >= id_limit_) return;
  id_limit_ = model_vocabulary;
  verify_ids();
}

// Compares the content of a small file with its fingerprint.
void TokenFile::verify_content() const {
  if (bytes_.size() > verified_bytes) return;
  verify_ids();
  if (offsets_ == nullptr) return;  // raw files have no fingerprint
  const auto digest = fingerprint_of(bytes_.subspan(token_header_bytes));
  if (!std::ranges::equal(digest, bytes_.subspan(fingerprint_at, digest.size()))) {
    refuse(fingerprint_at, "the content does not have the fingerprint of the header");
  }
}

// Batches take the tokens of a large file in random order. Reading ahead would load many pages of a
// cold file that nobody needs.
void TokenFile::expect_random_reads() const noexcept {
  if (bytes_.size() <= verified_bytes) return;
  mapped_->expect_random_reads(
      {ids_, static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(type_)});
}

std::int64_t TokenFile::begin(std::int64_t document) const noexcept {
  if (offsets_ == nullptr) return document == 0 ? 0 : tokens_;
  return load<std::int64_t>(offsets_ + word * static_cast<std::size_t>(document));
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> out) const {
  const std::byte* const from =
      ids_ + static_cast<std::size_t>(type_) * static_cast<std::size_t>(first);
  switch (type_) {
    case TokenType::uint16:
      widen<std::uint16_t>(from, out);
      break;
    case TokenType::uint32:
      widen<std::uint32_t>(from, out);
      break;
  }
  const std::int32_t limit = std::min(vocabulary_, id_limit_);
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= limit; };
  const auto found = std::ranges::find_if(out, outside);
  if (found == out.end()) return;
  require(
      *found < 0 || *found >= vocabulary_,
      "{}: token {}: id {} is not in the model's vocabulary of {} tokens: convert the data again "
      "with the tokenizer of this model, or use a config.json with a larger vocab_size and "
      "--init none",
      name_, first + (found - out.begin()), *found, id_limit_);
  fail(ErrorCode::bad_data, "{}: token {}: id {} is not in a vocabulary of {} tokens", name_,
       first + (found - out.begin()), static_cast<std::uint32_t>(*found), vocabulary_);
}

bool TokenFile::trained(std::int64_t token) const noexcept {
  if (mask_ == nullptr) return true;
  const auto at = static_cast<std::uint64_t>(token);
  return (load<std::uint64_t>(mask_ + at / 64 * word) >> (at % 64) & 1U) != 0;
}

std::int64_t TokenFile::count_trained(std::int64_t first, std::int64_t last) const noexcept {
  if (mask_ == nullptr) return std::max<std::int64_t>(last - first, 0);
  std::int64_t count = 0;
  for (auto at = static_cast<std::uint64_t>(first), end = static_cast<std::uint64_t>(last);
       at < end;) {
    const std::uint64_t next = std::min(end, at / 64 * 64 + 64);
    std::uint64_t bits = load<std::uint64_t>(mask_ + at / 64 * word) >> (at % 64);
    if (next - at < 64) bits &= (std::uint64_t{1} << (next - at)) - 1;
    count += std::popcount(bits);
    at = next;
  }
  return count;
}

std::string_view TokenFile::piece(std::int32_t id) const noexcept {
  if (pieces_ == nullptr || id < 0 || id >= vocabulary_) return {};
  const auto i = static_cast<std::size_t>(id);
  const auto first = load<std::uint32_t>(pieces_ + i * 4);
  const auto last = load<std::uint32_t>(pieces_ + i * 4 + 4);
  const std::byte* const text = pieces_ + (static_cast<std::size_t>(vocabulary_) + 1) * 4;
  return {reinterpret_cast<const char*>(text) + first, last - first};
}

std::uint64_t TokenFile::fingerprint() const noexcept {
  constexpr std::size_t block = 4096, blocks = 1024;
  std::uint64_t hash = scramble(bytes_.size());
  const auto mix = [&](std::size_t first) {
    for (std::size_t at = first; at < std::min(first + block, bytes_.size()); at += word) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes_.data() + at, std::min(word, bytes_.size() - at));
      hash = scramble(hash ^ value) + value;
    }
  };
  const std::size_t all = (bytes_.size() + block - 1) / block;
  const std::size_t taken = std::min(all, blocks);
  for (std::size_t i = 0; i < taken; ++i) mix(all * i / taken * block);
  return hash;
}

}  // namespace train
