// Coloured text for terminals (ECMA-48).
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "atoll/tooling/inspection.hpp"

namespace atoll_v1::atoll {

// The colours and styles of text. paint() lists their terminal codes in the same order.
enum class Ink {
  bold,
  dim,
  red,
  green,
  yellow,
  blue
};

inline std::string paint(Colour colour, Ink ink, std::string_view text) {
  if (colour == Colour::off || text.empty()) return std::string(text);
  constexpr std::array<std::string_view, 6> codes{"1", "2", "31", "32", "33", "34"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[static_cast<std::size_t>(ink)], text);
}

inline Ink ink_of(Severity severity) {
  constexpr std::array inks{Ink::blue, Ink::yellow, Ink::red};  // for info, warning, error
  return inks[static_cast<std::size_t>(severity)];
}

}  // namespace atoll_v1::atoll
