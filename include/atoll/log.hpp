// The log of the process: one line per message to stderr, with time, level and rank. The library
// and its consumers share it. Any thread may call any function.
#pragma once

#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::log {

enum class Level {
  trace,
  debug,
  info,
  warn,
  error,
  off
};

// Parses the name of a level; throws Error(invalid_argument) for any other text.
ATOLL_API Level level_from_name(std::string_view name);

// Sets the lowest level that is logged, initially info. A World sets it from its configuration.
ATOLL_API void set_level(Level level);
ATOLL_API bool enabled(Level level) noexcept;

ATOLL_API void write(Level level, std::string_view message);

}  // namespace atoll_v1::atoll::log
