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

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t unsafe = unsafe_bytes(text);
    for (const char c : text.substr(0, unsafe))
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    if (unsafe == 0) shown += text.front();
    text.remove_prefix(unsafe == 0 ? 1 : unsafe);
  }
  return shown;
}

}  // namespace atoll_v1::atoll
