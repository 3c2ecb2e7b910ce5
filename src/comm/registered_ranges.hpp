// The ranges of memory that are registered with one communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

namespace atoll_v1::atoll {

// Lets the ranks refuse an overlap before a backend sees it: a backend finds it on one rank, while
// the other ranks already wait for that rank. Any thread may call any function.
class RegisteredRanges {
 public:
  struct Range {
    const void* memory = nullptr;
    std::size_t bytes = 0;
  };

  void add(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_.insert_or_assign(address(memory), bytes);
  }
  void remove(const void* memory) noexcept {
    const std::lock_guard lock(mutex_);
    ranges_.erase(address(memory));
  }
  // Returns a registered range that overlaps [memory, memory + bytes), if there is one. The ranges
  // do not overlap each other, so only the two around `memory` need a look.
  std::optional<Range> overlap(const void* memory, std::size_t bytes) const {
    const std::uintptr_t begin = address(memory);
    const std::lock_guard lock(mutex_);
    const auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first - begin < bytes) return range(next);
    if (next == ranges_.begin()) return std::nullopt;
    const auto before = std::prev(next);
    if (begin - before->first < before->second) return range(before);
    return std::nullopt;
  }

 private:
  using Map = std::map<std::uintptr_t, std::size_t>;

  static std::uintptr_t address(const void* memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  static Range range(Map::const_iterator entry) {
    return {reinterpret_cast<const void*>(entry->first), entry->second};
  }

  mutable std::mutex mutex_;
  Map ranges_;  // bytes by address
};

}  // namespace atoll_v1::atoll
