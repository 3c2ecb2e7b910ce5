// Shared by the tests of the host backend: the backend, and functions for single operations.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>

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

inline int open_descriptors() {
  int count = 0;
  DIR* const open = ::opendir("/proc/self/fd");
  REQUIRE(open != nullptr);
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}

inline int mapped_inboxes() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += contains(line, "/memfd:atoll-inbox") ? 1 : 0;
  return count;
}

// The IPv4 connections of this process by local and remote address.
using Connections = std::map<std::pair<std::string, std::string>, int>;

inline Connections connections() {
  const auto address_text = [](const sockaddr_in& address) -> std::string {
    std::array<char, INET_ADDRSTRLEN> result{};
    ::inet_ntop(AF_INET, &address.sin_addr, result.data(), result.size());
    return result.data();
  };
  Connections result;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_in own{}, other{};
    socklen_t own_size = sizeof(own), other_size = sizeof(other);
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
        own.sin_family == AF_INET &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) == 0) {
      ++result[{address_text(own), address_text(other)}];
    }
  }
  ::closedir(folder);
  return result;
}

// Both ends of each connection are in this process, so it counts twice.
inline int ends(const Connections& all) {
  int count = 0;
  for (const auto& [addresses, number] : all) count += number;
  return count;
}

// Returns connections() once `wanted` ends are left. It waits, because the short connection with
// which a rank asks another to connect may close a moment later.
inline Connections settled(int wanted) {
  for (int i = 0; i < 500 && ends(connections()) != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return connections();
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
