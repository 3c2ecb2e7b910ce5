// Environment variables that CUDA and NCCL read, and that the library sets before their first call.
// Both the library and the GPU backends, which share no code, include this header.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_abi {

// Adds entries "NAME=value" to the environment of this process, unless NAME is set, and removes
// variables. setenv() and unsetenv() move and free the array that getenv() reads, but other threads
// may call getenv() at any time (glibc before 2.41). These functions make a new array instead, and
// keep all earlier ones. No other thread may change the environment at the same time.
inline void change_environment(const std::vector<std::string>& added,
                               const std::vector<std::string>& removed) {
  struct Kept {
    std::mutex mutex;
    std::list<std::string> entries;
    std::list<std::vector<char*>> arrays;
  };
  static auto* const kept = new Kept;  // never destroyed: the environment outlives static objects
  const std::lock_guard lock(kept->mutex);
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  std::vector<char*> array;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::ranges::find(removed, name_of(*entry)) == removed.end()) array.push_back(*entry);
  for (const std::string& text : added) {
    const auto is_same = [&](const char* entry) { return name_of(entry) == name_of(text); };
    if (std::ranges::none_of(array, is_same))
      array.push_back(kept->entries.emplace_back(text).data());
  }
  array.push_back(nullptr);
  kept->arrays.push_back(std::move(array));
  std::atomic_ref(environ).store(kept->arrays.back().data(), std::memory_order_release);
}

inline void add_to_environment(const std::vector<std::string>& entries) {
  change_environment(entries, {});
}
inline void remove_from_environment(const std::vector<std::string>& names) {
  change_environment({}, names);
}

}  // namespace atoll_abi
