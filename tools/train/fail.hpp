// Throws errors with formatted messages.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "atoll/error.hpp"

namespace train {

using atoll::Error;
using atoll::ErrorCode;
using atoll::text_of;

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(invalid_argument) unless the condition holds.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) fail(ErrorCode::invalid_argument, format, std::forward<Args>(args)...);
}

// Calls `check` and adds the name of a flag to its error.
template <class Check>
void check_flag(const char* flag, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", flag, error.what());
  }
}

}  // namespace train
