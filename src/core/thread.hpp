// Starts threads.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"

namespace atoll_v1::atoll {

// Call it after a thread could not be started. Returns a text with the limit that was reached, its
// source and what to do. `root` is the root of the file system, which tests replace.
std::string thread_limit(const std::filesystem::path& root = "/");

// Throws Error(io), which names the limit, if the system allows no more threads.
template <class Body>
std::jthread start_thread(Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw make_error(ErrorCode::io, "cannot start a thread: {}: {}", error.code().message(),
                     thread_limit());
  }
}

}  // namespace atoll_v1::atoll
