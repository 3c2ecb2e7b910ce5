// Collects the warnings and errors of the log while it exists.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/log.hpp"

namespace atoll_test {

class CollectedLog {
 public:
  CollectedLog() {
    atoll::log::set_level(atoll::log::Level::warn);
    atoll::log::set_sink([this](atoll::log::Level level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level >= atoll::log::Level::warn) all_.emplace_back(text);
    });
  }
  ~CollectedLog() {
    atoll::log::set_sink(nullptr);
    atoll::log::set_level(atoll::log::Level::error);
  }
  CollectedLog(const CollectedLog&) = delete;
  CollectedLog& operator=(const CollectedLog&) = delete;

  // Returns the messages that contain `part`.
  std::vector<std::string> with(std::string_view part) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    std::ranges::copy_if(all_, std::back_inserter(found),
                         [&](const auto& text) { return text.find(part) != text.npos; });
    return found;
  }
  std::ptrdiff_t count(std::string_view part) const { return std::ssize(with(part)); }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::string> all_;  // the log adds to it while tests only read it
};

}  // namespace atoll_test
