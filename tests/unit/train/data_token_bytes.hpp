// Writes token files for tests, byte by byte from tools/train/data/token_files.md, so
// that the reader and atoll-data are checked against the description and not against each other.
#pragma once

#include <sodium.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace train_test {

struct TokenBytes {
  std::vector<std::vector<std::uint32_t>> documents;
  std::vector<bool> mask{};  // one for each token; empty: the file has no mask
  std::uint32_t version = 2;
  std::uint32_t width = 2;
  std::uint32_t vocabulary = 300;
  std::uint32_t pad = 0xffffffff;
  std::uint32_t eos = 257;
  bool joined = false;
  std::vector<std::string> pieces{};  // one for each id; empty: the file has no pieces
  std::string tokenizer_name = "test";
  std::string digest = std::string(32, '\0');
};

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
void set(std::string& out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}

// Sets the fingerprint of the content, and from version 2 on that of the header.
inline void set_fingerprint(char* file, std::size_t size) {
  auto* const bytes = reinterpret_cast<unsigned char*>(file);
  crypto_generichash(bytes + 48, 16, bytes + 256, size - 256, nullptr, 0);
  if (file[8] != 1) crypto_generichash(bytes + 160, 16, bytes, 160, nullptr, 0);
}

inline void pad_to_word(std::string& out) { out.resize((out.size() + 7) / 8 * 8); }

inline std::string token_bytes(const TokenBytes& file) {
  std::uint64_t tokens = 0;
  for (const auto& document : file.documents) tokens += document.size();
  std::string out = "ATOLLTOK";
  put(out, file.version);
  put<std::uint32_t>(out, (file.mask.empty() ? 0U : 1U) | (file.joined ? 2U : 0U) |
                              (file.pieces.empty() ? 0U : 4U));
  for (const auto value : {file.width, file.vocabulary, file.pad, file.eos}) put(out, value);
  put<std::uint64_t>(out, file.documents.size());
  put(out, tokens);
  out.resize(64);
  out += file.digest;
  out += file.tokenizer_name;
  out.resize(256);
  for (const auto& document : file.documents) {
    for (const auto id : document) {
      file.width == 2 ? put(out, static_cast<std::uint16_t>(id)) : put(out, id);
    }
  }
  pad_to_word(out);
  std::uint64_t at = 0;
  put(out, at);
  for (const auto& document : file.documents) put(out, at += document.size());
  if (!file.mask.empty()) {
    for (std::size_t first = 0; first < tokens; first += 64) {
      std::uint64_t word = 0;
      for (std::size_t bit = 0; bit < 64 && first + bit < tokens; ++bit) {
        if (file.mask[first + bit]) word |= std::uint64_t{1} << bit;
      }
      put(out, word);
    }
  }
  if (!file.pieces.empty()) {
    std::uint32_t end = 0;
    put(out, end);
    for (const auto& piece : file.pieces) put(out, end += static_cast<std::uint32_t>(piece.size()));
    for (const auto& piece : file.pieces) out += piece;
  }
  set_fingerprint(out.data(), out.size());
  return out;
}

}  // namespace train_test
