// Memory that this process can still take, so that a size that cannot fit is an error before a page
// is touched. Afterwards it is too late: the kernel ends processes when memory runs out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace atoll_v1::atoll {

struct FreeMemory {
  std::uint64_t host;     // bytes that all processes of the host together can still take
  std::uint64_t process;  // bytes that this process can still take within its limits
  std::string limit;      // names the limit behind `process`
};

// Reads /proc/meminfo, the memory limits of the control groups of this process, and RLIMIT_AS. A
// value that cannot be read counts as unlimited. `root` is the root of the file system, which tests
// replace.
FreeMemory free_memory(const std::filesystem::path& root = "/");

// Throws Error(out_of_memory) if `bytes` bytes of host memory cannot fit. Small sizes are not
// checked, because the check reads files.
void require_free_memory(std::uint64_t bytes);

}  // namespace atoll_v1::atoll
