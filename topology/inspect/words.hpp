// Parsing of short texts: words and prefixes.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "parse_number.hpp"

namespace atoll_v1::atoll {

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
