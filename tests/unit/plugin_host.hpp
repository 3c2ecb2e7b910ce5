// Shared by the tests of the host backend: the backend, and functions for single operations.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "plugin_ranks.hpp"

namespace plugin_ranks {

constexpr std::int64_t second = 1'000'000'000;

inline const atoll_backend& backend() {
  static const atoll_backend& table = load(ATOLL_PLUGIN_HOST);
  return table;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void expect_ok(const Result& result) {
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
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
