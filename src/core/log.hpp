// The log of the library writes one line per message to stderr, with time, level and rank. Any thread
// may call any function. Only log.cpp includes spdlog, because its headers are slow to compile.
#pragma once

#include <fmt/core.h>

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
Level level_from_name(std::string_view name);

// Level and rank apply to the whole process. The initial level is info, and an unknown rank prints as
// "-".
void set_level(Level level);
void set_rank(int rank) noexcept;
bool enabled(Level level) noexcept;

void write(Level level, std::string_view message);

template <class... Args>
void formatted(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void trace(fmt::format_string<Args...> format, Args&&... args) {
  formatted<Args...>(Level::trace, format, std::forward<Args>(args)...);
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  formatted<Args...>(Level::debug, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  formatted<Args...>(Level::info, format, std::forward<Args>(args)...);
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  formatted<Args...>(Level::warn, format, std::forward<Args>(args)...);
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  formatted<Args...>(Level::error, format, std::forward<Args>(args)...);
}

}  // namespace atoll_v1::atoll::log
