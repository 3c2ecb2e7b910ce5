// Keys of the store that the library makes for itself. Users never chose them, so messages show a
// title in their place.
#pragma once

#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::store {

inline constexpr char title_end = '\x1f';  // unit separator of ASCII

// Returns a key for which errors show `title`. With an empty title, errors name no subject, because
// the text of the caller does.
inline std::string titled(std::string_view title, std::string_view key) {
  return std::string(title) + title_end + std::string(key);
}

}  // namespace atoll_v1::atoll::store
