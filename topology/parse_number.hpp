// Parsing of text that must be a number as a whole.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <type_traits>

namespace atoll_v1::atoll {

// Parses a number. Empty when the text is not a number, has other characters around it, or is out
// of range.
template <class T>
std::optional<T> parse_number(std::string_view text, [[maybe_unused]] int base = 10) {
  T value{};
  const char* const last = text.data() + text.size();
  std::from_chars_result result{};
  if constexpr (std::is_floating_point_v<T>)
    result = std::from_chars(text.data(), last, value);
  else
    result = std::from_chars(text.data(), last, value, base);
  return result.ec == std::errc() && result.ptr == last ? std::optional(value) : std::nullopt;
}

// Accepts hexadecimal numbers too, as "0x1f".
inline std::optional<long long> parse_integer(std::string_view text) {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  return is_hex ? parse_number<long long>(text.substr(2), 16) : parse_number<long long>(text);
}

}  // namespace atoll_v1::atoll
