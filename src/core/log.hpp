// Formats messages for the log of atoll/log.hpp. Only log.cpp includes spdlog, because its headers are
// slow to compile.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/log.hpp"

namespace atoll_v1::atoll::log {

// The rank that lines show, for the whole process; "-" until it is set.
void set_rank(int rank) noexcept;

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
