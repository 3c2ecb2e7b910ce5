// The error of a call, as text.
#pragma once

#include <string>

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

}  // namespace atoll_test
