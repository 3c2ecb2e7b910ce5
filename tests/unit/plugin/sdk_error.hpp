// The error of a call into a backend, as text.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "sdk/backend.hpp"

namespace atoll_test {

// Returns the text of the error that `call` throws, which must have `status` if that is given, or
// "no error".
template <class Call>
std::string sdk_error(const Call& call, std::optional<atoll_status> status = {}) {
  try {
    call();
    return "no error";
  } catch (const atoll_sdk::Error& error) {
    if (status) CHECK(error.status() == *status);
    return error.what();
  }
}

}  // namespace atoll_test
