// ATOLL_ASSERT checks an invariant in every build and aborts the process if it is broken, because
// that is a bug of atoll. Mistakes that a caller or a peer can make throw Error instead.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

[[noreturn]] inline void assertion_failed(const char* condition, const char* message,
                                          const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, message, condition);
  std::abort();
}

}  // namespace atoll_v1::atoll

#define ATOLL_ASSERT(condition, message) \
  ((condition) ? static_cast<void>(0)    \
               : ::atoll_v1::atoll::assertion_failed(#condition, message, __FILE__, __LINE__))
