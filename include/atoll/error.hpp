// The only exception type of atoll. Header-only, so that topology/ and the tools can use it without
// linking the library.
#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// The kind of an error, for programs; the message is for people. Values equal those of
// `atoll_status` in plugin.h, where 0 means success.
enum class ErrorCode : int {
  invalid_argument = 1,  // the caller passed a wrong shape, name or option, or called out of order
  not_found = 2,         // a file, key, backend or unit does not exist
  unsupported = 3,       // this build or backend does not support the combination
  timeout = 4,           // a rank or a message did not arrive in time
  peer_lost = 5,         // a process of the job ended or closed its connection
  aborted = 6,           // this rank stopped because another rank failed
  mismatch = 7,          // ranks disagree about an operation, a file or a version
  io = 8,                // a call of the operating system failed
  out_of_memory = 9,
  bad_data = 10,  // untrusted input is malformed; the message names the file and the byte offset
  backend = 11,   // the library of a backend (MPI, NCCL) reported an error
  internal = 12,  // a bug of atoll, or a use of memory that ATOLL_CHECK=lifetimes rejects
};

constexpr std::string_view name(ErrorCode code) noexcept {
  constexpr std::array<std::string_view, 13> names = {
      "success",   "invalid argument", "not found",     "unsupported",        "timeout",
      "peer lost", "aborted",          "mismatch",      "input/output error", "out of memory",
      "bad data",  "backend error",    "internal error"};
  static_assert(names.size() == static_cast<std::size_t>(ErrorCode::internal) + 1);
  const auto index = static_cast<std::size_t>(code);
  return index > 0 && index < names.size() ? names[index] : "unknown error";
}

// The Error that this thread has made last, as text; empty after that Error is destroyed. If a
// World is destroyed while an exception unwinds the stack, it sends this text to the other ranks,
// because in C++ a destructor cannot see the exception. Errors that destructors make and handle
// while an exception unwinds the stack do not count.
struct NewestError {
  const void* error = nullptr;
  std::array<char, 2048> text{};  // ends with a null character; a longer message is cut off
};
inline thread_local ATOLL_API NewestError newest_error{};

// Thrown by every function of atoll that fails and is not noexcept. what() is one line that names
// the object concerned and, if known, the rank, peer, operation, sequence number and bytes.
class ATOLL_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {
    remember();
  }
  Error(const Error& other) noexcept : std::runtime_error(other), code_(other.code_) { remember(); }
  Error& operator=(const Error&) noexcept = default;
  ~Error() override {
    if (newest_error.error == this) newest_error = {};
  }
  ErrorCode code() const noexcept { return code_; }

 private:
  void remember() noexcept {
    if (std::uncaught_exceptions() > 0) return;
    const std::string_view message = what();
    newest_error = {this, {}};
    message.copy(newest_error.text.data(), newest_error.text.size() - 1);
  }
  ErrorCode code_;
};

// Returns what() of the error, or "out of memory" for std::bad_alloc, whose what() is only the name
// of the class.
inline const char* text_of(const std::exception& error) noexcept {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

}  // namespace atoll_v1::atoll
