// Formats messages for the log that the trainer shares with the library.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "atoll/log.hpp"

namespace train::log {

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (atoll::log::enabled(atoll::log::Level::debug)) {
    atoll::log::write(atoll::log::Level::debug, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (atoll::log::enabled(atoll::log::Level::info)) {
    atoll::log::write(atoll::log::Level::info, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (atoll::log::enabled(atoll::log::Level::warn)) {
    atoll::log::write(atoll::log::Level::warn, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace train::log
