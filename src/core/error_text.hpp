// The text of any exception.
#pragma once

#include <exception>
#include <new>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Returns what() of the error, or "out of memory" for std::bad_alloc, whose what() is only the name
// of the class.
inline const char* text_of(const std::exception& error) noexcept {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

}  // namespace atoll_v1::atoll
