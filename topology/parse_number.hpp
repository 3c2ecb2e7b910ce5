// Parsing of texts: numbers, versions, words and prefixes.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace atoll_v1::atoll {

// Removes a number from the beginning of a text and returns it. Empty when the text does not begin
// with a number, or when the number is out of range.
template <class T>
std::optional<T> take_number(std::string_view& text, [[maybe_unused]] int base = 10) {
  T value{};
  const char* const last = text.data() + text.size();
  std::from_chars_result result{};
  if constexpr (std::is_floating_point_v<T>)
    result = std::from_chars(text.data(), last, value);
  else
    result = std::from_chars(text.data(), last, value, base);
  if (result.ec != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(result.ptr - text.data()));
  return value;
}

// Parses a number. Empty when the text is not a number, has other characters around it, or is out
// of range.
template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  const std::optional<T> value = take_number<T>(text, base);
  return text.empty() ? value : std::nullopt;
}

// Parses a decimal integer, or a hexadecimal one such as "0x1f".
inline std::optional<long long> parse_integer(std::string_view text) {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  return is_hex ? parse_number<long long>(text.substr(2), 16) : parse_number<long long>(text);
}

// Reads up to three numbers of a version: {5, 15, 0} for "5.15.0-91-generic". A number that is
// missing is 0.
inline std::array<int, 3> parse_version(std::string_view text) {
  std::array<int, 3> version{};
  for (int& number : version) {
    number = take_number<int>(text).value_or(0);
    if (!text.starts_with('.')) break;
    text.remove_prefix(1);
  }
  return version;
}

// Calls take(word) for each word between separators. Neighbouring separators count as one.
template <class Take>
void each_word(std::string_view text, std::string_view separators, const Take& take) {
  for (std::size_t at = text.find_first_not_of(separators); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    take(text.substr(at, end - at));
    at = text.find_first_not_of(separators, end);
  }
}

inline std::vector<std::string_view> words_of(std::string_view text,
                                              std::string_view separators = " ") {
  std::vector<std::string_view> words;
  each_word(text, separators, [&](std::string_view word) { words.push_back(word); });
  return words;
}

inline bool starts_with_any(std::string_view text,
                            std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return text.starts_with(prefix); });
}

}  // namespace atoll_v1::atoll
