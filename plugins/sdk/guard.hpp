// Error handling of a backend. Inside the backend, errors are C++ exceptions; at the C boundary
// they become a status and one line of text.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
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

// Returns an Error with the status ATOLL_IO and the text "WHAT: MEANING", where MEANING describes
// the errno value `error`. If the process has no file descriptor left, the text states the remedy.
inline Error system_error(std::string_view what, int error) {
  const char* remedy = error == EMFILE ? ": no file descriptor is left; raise `ulimit -n`"
                       : error == ENFILE
                           ? ": the host has no file descriptor left; raise fs.file-max"
                           : "";
  return {ATOLL_IO, std::string(what) + ": " + std::generic_category().message(error) + remedy};
}

// Storage for the text that last_error() returns. The array has a fixed size, so that an
// out-of-memory error can be reported without allocating memory.
inline thread_local std::array<char, 2048> last_error_text{};

// Returns the text of the calling thread's most recent failure, or "" if nothing has failed.
inline const char* last_error() noexcept { return last_error_text.data(); }

// Stores the text for last_error(). Texts of 2,048 bytes and more are truncated.
inline void set_last_error(std::string_view message) noexcept {
  const std::size_t length = std::min(message.size(), last_error_text.size() - 1);
  std::copy_n(message.data(), length, last_error_text.data());
  last_error_text[length] = '\0';
}

// Stores the text of the exception that is being handled for last_error(), and returns the matching
// status. Must be called inside a catch block.
inline atoll_status record_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return ATOLL_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return ATOLL_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception");
    return ATOLL_INTERNAL;
  }
}

// Runs `body` and converts any exception into a status and a text for last_error(). Every function
// in a backend's C table that returns a status wraps its work in guard().
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
