#include "atoll/version.hpp"

namespace atoll_v1::atoll {

std::string_view version() noexcept { return ATOLL_VERSION; }

// CMake defines ATOLL_BUILD_FEATURES.
std::string_view build_features() noexcept { return ATOLL_BUILD_FEATURES; }

}  // namespace atoll_v1::atoll
