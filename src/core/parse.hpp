// Parses and hashes text: settings, tables of the kernel, and short messages between ranks.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Returns the text without blanks at its ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Splits the text at every separator; n separators give n + 1 pieces, which may be empty.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const auto end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

// Returns the number that the whole text represents; nothing for any other text.
template <std::integral T>
std::optional<T> number_from(std::string_view text) {
  T number{};
  const char* const last = text.data() + text.size();
  const auto [end, problem] = std::from_chars(text.data(), last, number);
  if (problem != std::errc() || end != last) return std::nullopt;
  return number;
}

// The 64-bit FNV-1a hash (Fowler, Noll, Vo), which gives the same number for a text on every rank.
constexpr std::uint64_t fnv1a(std::string_view text,
                              std::uint64_t start = 0xcbf29ce484222325u) noexcept {
  for (const char c : text) start = (start ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return start;
}

}  // namespace atoll_v1::atoll
