// Formats messages for the log that the trainer shares with the library.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/log.hpp"

namespace train::log {

template <atoll::log::Level level>
struct Writer {
  template <class... Args>
  void operator()(fmt::format_string<Args...> format, Args&&... args) const {
    if (!atoll::log::enabled(level)) return;
    atoll::log::write(level, fmt::format(format, std::forward<Args>(args)...));
  }
};

inline constexpr Writer<atoll::log::Level::debug> debug;
inline constexpr Writer<atoll::log::Level::info> info;
inline constexpr Writer<atoll::log::Level::warn> warn;

}  // namespace train::log
