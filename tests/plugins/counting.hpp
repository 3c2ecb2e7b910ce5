// The counts of the test backend `counting`, for all communicators of a process.
#pragma once

#include <cstdint>

namespace atoll_test {

struct Counts {
  std::uint64_t groups = 0;        // groups of operations
  std::uint64_t unregistered = 0;  // reduce_scatters whose dst is not registered memory
};

}  // namespace atoll_test
