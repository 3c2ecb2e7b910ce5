// The one exception type of atoll. Header-only: topology/ and the tools use it without the library.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// What went wrong, for programs; the message is for people. Values are those of `atoll_status` in
// plugin.h (0 is success there and never thrown).
enum class ErrorCode : int {
  invalid_argument = 1,  // the caller's fault: shape, name, option, order of calls
  not_found = 2,         // a file, a key, a backend, a unit
  unsupported = 3,       // a combination that this build or backend does not have
  timeout = 4,           // a rank or a message did not come in time
  peer_lost = 5,         // a process of the job ended or closed its connection
  aborted = 6,           // this rank stopped because another one failed
  mismatch = 7,          // ranks disagree about an operation, a file or a version
  io = 8,                // the operating system said no
  out_of_memory = 9,
  bad_data = 10,  // untrusted input that does not parse; the message names file and byte offset
  backend = 11,   // a plugin's library (MPI, NCCL) reported an error
  internal = 12,
};

constexpr std::string_view name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_lost:
      return "peer lost";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::io:
      return "input/output error";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::bad_data:
      return "bad data";
    case ErrorCode::backend:
      return "backend error";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown error";
}

// Thrown by every function of atoll that fails, unless its declaration is noexcept. `what()` is one
// line that names the thing, and rank, peer, operation, sequence number and bytes where they are
// known.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace atoll_v1::atoll
