// The error of a call, as text.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "atoll/error.hpp"

namespace atoll_test {

// Returns the error of `call` as text ("mismatch: ..."), or "no error".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
    return "no error";
  } catch (const atoll::Error& error) {
    return std::string(atoll::name(error.code())) + ": " + error.what();
  }
}

// Returns whether the text has all parts. A failed test shows a text that lacks one.
inline bool has(const std::string& text, std::initializer_list<std::string_view> parts) {
  bool all = true;
  for (const std::string_view part : parts) {
    if (text.find(part) != std::string::npos) continue;
    MESSAGE("\"" << text << "\" lacks \"" << std::string(part) << "\"");
    all = false;
  }
  return all;
}
inline bool has(const std::string& text, std::string_view part) { return has(text, {part}); }

}  // namespace atoll_test
