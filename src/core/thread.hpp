// Starts threads.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"

namespace atoll_v1::atoll {

// Throws Error(io) if the system allows no more threads.
template <class Body>
std::jthread start_thread(Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw make_error(ErrorCode::io, "cannot start a thread: {}; raise `ulimit -u`",
                     error.code().message());
  }
}

}  // namespace atoll_v1::atoll
