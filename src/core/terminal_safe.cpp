#include "core/terminal_safe.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>

namespace atoll_v1::atoll {
namespace {

// The character of Unicode at the start of a text, and its number of bytes; 0 bytes if the text
// does not start with UTF-8.
struct Character {
  std::size_t bytes = 0;
  char32_t code = 0;
};
Character first_character(std::string_view text) noexcept {
  // The smallest code point for each number of bytes; a smaller one needs fewer bytes.
  constexpr std::array<char32_t, 5> least = {0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<unsigned char>(text.front());
  const auto ones = static_cast<std::size_t>(std::countl_one(lead));
  const std::size_t bytes = ones == 0 ? 1 : ones;
  if (ones == 1 || ones > 4 || bytes > text.size()) return {};
  char32_t code = bytes == 1 ? lead : lead & (0x7fu >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80) return {};
    code = code << 6 | (byte & 0x3fu);
  }
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < least[bytes] || code > 0x10ffff || is_surrogate) return {};
  return {bytes, code};
}

// True for control characters, marks of direction, separators, embeddings, overrides and isolates.
bool is_unsafe(char32_t code) noexcept {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::optional<std::size_t> invalid_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = first_character(text.substr(at)).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

std::string one_line(std::string_view text) {
  std::string spaced;
  for (const char c : text) {
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!is_space) {
      spaced += c;
    } else if (!spaced.empty() && spaced.back() != ' ') {
      spaced += ' ';
    }
  }
  if (spaced.ends_with(' ')) spaced.pop_back();
  return terminal_safe(spaced);
}

std::string terminal_safe(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    // Escapes bytes that are not UTF-8: terminals with 8-bit controls obey 0x80 to 0x9f.
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes == 0 || is_unsafe(character.code)) {
      for (const char c : text.substr(0, bytes))
        shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      shown += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return shown;
}

}  // namespace atoll_v1::atoll
