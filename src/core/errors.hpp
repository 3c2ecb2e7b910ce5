// Errors with formatted messages.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// The text for an exception that is not a std::exception.
inline constexpr const char* foreign_exception = "an exception that is not a std::exception";

// Returns Error(code) with a formatted message.
template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  return {code, fmt::format(text, std::forward<Args>(args)...)};
}

// Returns Error(invalid_argument) with a formatted message.
template <class... Args>
Error invalid(fmt::format_string<Args...> text, Args&&... args) {
  return make_error(ErrorCode::invalid_argument, text, std::forward<Args>(args)...);
}

// Throws Error(code), or without a code Error(invalid_argument), if `condition` is false. Only then
// is the message formatted, but its arguments are always evaluated.
template <class... Args>
void require(bool condition, ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw make_error(code, text, std::forward<Args>(args)...);
}
template <class... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  require(condition, ErrorCode::invalid_argument, text, std::forward<Args>(args)...);
}

}  // namespace atoll_v1::atoll
