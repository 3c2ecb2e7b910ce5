// The version of atoll, at compile time and at run time.
//
// Below 1.0, libraries with equal major and minor numbers are compatible, so these two numbers are
// in the file names that programs load (libatoll.so.0.1).
#pragma once

#include <string_view>

#include "atoll/namespace.hpp"

#define ATOLL_VERSION_MAJOR 0
#define ATOLL_VERSION_MINOR 1
#define ATOLL_VERSION_PATCH 0

#define ATOLL_VERSION_TEXT_OF(number) #number
#define ATOLL_VERSION_TEXT(major, minor, patch) \
  ATOLL_VERSION_TEXT_OF(major)                  \
  "." ATOLL_VERSION_TEXT_OF(minor) "." ATOLL_VERSION_TEXT_OF(patch)

// The version of these headers as text, such as "0.1.0".
#define ATOLL_VERSION \
  ATOLL_VERSION_TEXT(ATOLL_VERSION_MAJOR, ATOLL_VERSION_MINOR, ATOLL_VERSION_PATCH)
// The version as a number that #if can compare: 10000 * major + 100 * minor + patch.
#define ATOLL_VERSION_NUMBER \
  (10000 * ATOLL_VERSION_MAJOR + 100 * ATOLL_VERSION_MINOR + ATOLL_VERSION_PATCH)

namespace atoll_v1::atoll {

// Returns the version of the library that the program has loaded, which can be a later patch of the
// version that the program was compiled with.
ATOLL_API std::string_view version() noexcept;
// Returns the features of this build of the library, such as "devices host and cuda (CUDA 13.0),
// shared library, GNU 12.2.0".
ATOLL_API std::string_view build_features() noexcept;

}  // namespace atoll_v1::atoll
