#include "report/peak_memory.hpp"

#include <sys/resource.h>

namespace train {

std::int64_t peak_resident_bytes() noexcept {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

}  // namespace train
