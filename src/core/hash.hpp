// The 64-bit FNV-1a hash (Fowler, Noll, Vo), which gives the same number for a name on every rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

constexpr std::uint64_t fnv1a(std::string_view text,
                              std::uint64_t start = 0xcbf29ce484222325u) noexcept {
  for (const char c : text) start = (start ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return start;
}

}  // namespace atoll_v1::atoll
