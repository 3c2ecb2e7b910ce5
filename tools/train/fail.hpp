// Throws errors with formatted messages, and gives the text of an error.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

#include "atoll/error.hpp"

namespace train {

using atoll::Error;
using atoll::ErrorCode;

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(invalid_argument) unless the condition holds.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) fail(ErrorCode::invalid_argument, format, std::forward<Args>(args)...);
}

// Returns what() of the error, or "out of memory" for std::bad_alloc, whose what() is only the name
// of the class.
inline const char* text_of(const std::exception& error) noexcept {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

}  // namespace train
