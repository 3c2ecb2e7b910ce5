// Errors of a plugin: exceptions inside, an atoll_status and a line of text at the C boundary.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/plugin.h"

namespace atoll_sdk {

class Error : public std::runtime_error {
 public:
  Error(atoll_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  atoll_status status() const noexcept { return status_; }

 private:
  atoll_status status_;
};

// ATOLL_IO: "WHAT: text of the errno value `error`".
Error system_error(std::string_view what, int error);

// The calling thread's last failure; "" when there was none.
const char* last_error() noexcept;
void set_last_error(std::string_view text) noexcept;

// Inside a catch block: notes the exception's text and returns its status.
atoll_status record_current_exception() noexcept;

// Runs `body` behind the C boundary: whatever it throws becomes a status and last_error().
template <typename Body>
atoll_status guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return ATOLL_OK;
  } catch (...) {
    return record_current_exception();
  }
}

}  // namespace atoll_sdk
