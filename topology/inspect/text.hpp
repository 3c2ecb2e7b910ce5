// Parsing of short texts: words, prefixes, port names.
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

struct PortName {
  std::string_view device, port;
};

// "mlx5_0:2" is port "2" of device "mlx5_0". Without a number after a colon, the whole name is the
// device and the port is empty.
inline PortName split_port(std::string_view name) {
  const auto colon = name.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == name.size() ||
      name.find_first_not_of("0123456789", colon + 1) != std::string_view::npos)
    return {name, ""};
  return {name.substr(0, colon), name.substr(colon + 1)};
}

}  // namespace atoll_v1::atoll
