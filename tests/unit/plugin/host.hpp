// Shared by the tests of the host backend: the backend, and functions for single operations.
#pragma once

#include <dirent.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "unit/plugin/collectives.hpp"
#include "unit/plugin/ranks.hpp"

namespace plugin_ranks {

constexpr std::int64_t second = 1'000'000'000;

inline const atoll_backend& backend() {
  static const atoll_backend& table = load(ATOLL_PLUGIN_HOST);
  return table;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline int entries_of(const char* folder, const std::string& prefix) {
  int count = 0;
  DIR* const open = ::opendir(folder);
  REQUIRE(open != nullptr);
  while (const dirent* entry = ::readdir(open))
    count += std::string(entry->d_name).starts_with(prefix) ? 1 : 0;
  ::closedir(open);
  return count;
}
inline int open_descriptors() { return entries_of("/proc/self/fd", ""); }

inline int mapped_inboxes() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += contains(line, "/memfd:atoll-inbox") ? 1 : 0;
  return count;
}

inline Result barrier(Rank& rank) {
  return rank.submit(rank.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0));
}

inline Result all_gather(Rank& rank, std::uint64_t count) {
  Bytes src(count * 4);
  Bytes dst(src.size() * static_cast<std::size_t>(rank.size()));
  return rank.submit(rank.operation(ATOLL_ALL_GATHER, ATOLL_F32, src.data(), dst.data(), count));
}

}  // namespace plugin_ranks
