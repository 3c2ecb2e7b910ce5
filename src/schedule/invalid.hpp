#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// Returns Error(invalid_argument) with a formatted message.
template <class... Args>
Error invalid(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::invalid_argument, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace atoll_v1::atoll
