// Limits on the memory and the threads that this process may use. Code asks here before it
// allocates: the kernel grants more memory than there is, and kills a process that then touches it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"

namespace atoll_v1::atoll {

struct FreeMemory {
  std::uint64_t host;     // bytes that all processes of the host together can still take
  std::uint64_t process;  // bytes that this process can still take within its limits
  std::string limit;      // name of the limit that determines `process`
};

// Reads /proc/meminfo, the memory limits of the control groups of this process, and RLIMIT_AS. A
// value that cannot be read counts as unlimited. `root` is the root of the file system, which tests
// replace.
FreeMemory free_memory(const std::filesystem::path& root = "/");

// Throws Error(out_of_memory) if `bytes` bytes of CPU memory cannot fit. Small sizes are not
// checked, because the check reads files.
void require_free_memory(std::uint64_t bytes);

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
