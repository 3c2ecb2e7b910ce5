#include "report/peak_memory.hpp"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace train {

std::int64_t peak_resident_bytes() noexcept {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux reports ru_maxrss in KiB
}

std::int64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace train
