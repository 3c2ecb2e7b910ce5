#include "core/terminal_text.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace atoll_v1::atoll {
namespace {

// Returns the number of bytes at the start of the text that form one unsafe character, or 0.
std::size_t unsafe_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0), second = byte(1), third = byte(2);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && second >= 0x80 && second <= 0x9f) return 2;
  if (first != 0xe2) return 0;
  // U+200E and U+200F (marks of direction), U+2028 to U+202E (separators, embeddings, overrides)
  if (second == 0x80 && (third == 0x8e || third == 0x8f || (third >= 0xa8 && third <= 0xae)))
    return 3;
  // U+2066 to U+2069 (isolates)
  if (second == 0x81 && third >= 0xa6 && third <= 0xa9) return 3;
  return 0;
}

// Returns the number of bytes of the UTF-8 character at the start of the text, or 0 if there is
// none. Table 3-7 of the Unicode standard.
std::size_t utf8_bytes(std::string_view text) noexcept {
  const auto is_between = [&](std::size_t i, unsigned low, unsigned high) {
    const unsigned byte = i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    return byte >= low && byte <= high;
  };
  const auto is_tail = [&](std::size_t i) { return is_between(i, 0x80, 0xbf); };
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  if (first < 0xe0) return is_tail(1) ? 2 : 0;
  if (first < 0xf0) {
    const bool is_second = is_between(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf);
    return is_second && is_tail(2) ? 3 : 0;
  }
  const bool is_second = is_between(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf);
  return is_second && is_tail(2) && is_tail(3) ? 4 : 0;
}

}  // namespace

std::optional<std::size_t> invalid_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = utf8_bytes(text.substr(at));
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
  return terminal_text(spaced);
}

std::string terminal_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t character = utf8_bytes(text);
    // A terminal with 8-bit controls obeys single bytes from 0x80 to 0x9f.
    const std::size_t unsafe = character == 0 ? 1 : unsafe_bytes(text);
    for (const char c : text.substr(0, unsafe))
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    if (unsafe == 0) shown += text.substr(0, character);
    text.remove_prefix(unsafe == 0 ? character : unsafe);
  }
  return shown;
}

}  // namespace atoll_v1::atoll
