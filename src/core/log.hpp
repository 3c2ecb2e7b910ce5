// Formats messages for the log of atoll/log.hpp. Only log.cpp includes spdlog, because its headers
// are slow to compile.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/log.hpp"

namespace atoll_v1::atoll::log {

// Sets the rank that all log lines of this process show; before the call they show "-".
void set_rank(int rank) noexcept;

// Writes messages of one level; formats them only if the level is enabled.
template <Level level>
struct Writer {
  template <class... Args>
  void operator()(fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
  }
};
inline constexpr Writer<Level::trace> trace;
inline constexpr Writer<Level::debug> debug;
inline constexpr Writer<Level::info> info;
inline constexpr Writer<Level::warn> warn;
inline constexpr Writer<Level::error> error;

}  // namespace atoll_v1::atoll::log
