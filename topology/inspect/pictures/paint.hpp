// Colours of a terminal (ECMA-48).
#pragma once

#include <string>
#include <string_view>

#include "atoll/inspect/inspection.hpp"

namespace atoll_v1::atoll {

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
  const auto code = [&]() -> std::string_view {
    switch (ink) {
      case Ink::bold:
        return "1";
      case Ink::dim:
        return "2";
      case Ink::red:
        return "31";
      case Ink::green:
        return "32";
      case Ink::yellow:
        return "33";
      case Ink::blue:
        return "34";
    }
    return "0";
  }();
  return "\x1b[" + std::string(code) + 'm' + std::string(text) + "\x1b[0m";
}

inline Ink ink_of(Severity severity) {
  switch (severity) {
    case Severity::error:
      return Ink::red;
    case Severity::warning:
      return Ink::yellow;
    case Severity::info:
      return Ink::blue;
  }
  return Ink::blue;
}

}  // namespace atoll_v1::atoll
