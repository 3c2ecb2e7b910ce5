// Throws errors with formatted messages.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
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

// "1 rank" or "2 ranks".
inline std::string counted(std::int64_t number, std::string_view one, std::string_view more = {}) {
  if (number == 1) return fmt::format("1 {}", one);
  return more.empty() ? fmt::format("{} {}s", number, one) : fmt::format("{} {}", number, more);
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
