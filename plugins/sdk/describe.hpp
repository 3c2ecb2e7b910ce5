// Names and sizes of what an atoll_operation speaks of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "atoll/plugin.h"

namespace atoll_sdk {

// "all_gather", "f32", "sum"; "?" for a number that plugin.h does not define.
std::string_view kind_name(std::int32_t kind) noexcept;
std::string_view dtype_name(std::int32_t dtype) noexcept;
std::string_view op_name(std::int32_t op) noexcept;

// The inverse of kind_name(); -1: no such kind.
std::int32_t kind_of(std::string_view name) noexcept;

std::size_t dtype_size(std::int32_t dtype) noexcept;  // bytes; 0: unknown dtype

constexpr bool reduces(std::int32_t kind) noexcept {
  return kind == ATOLL_REDUCE_SCATTER || kind == ATOLL_ALL_REDUCE || kind == ATOLL_REDUCE ||
         kind == ATOLL_REDUCE_SCATTER_V;
}
constexpr bool has_root(std::int32_t kind) noexcept {
  return kind == ATOLL_BROADCAST || kind == ATOLL_REDUCE || kind == ATOLL_GATHER ||
         kind == ATOLL_SCATTER;
}
// Of one count per rank.
constexpr bool is_uneven(std::int32_t kind) noexcept {
  return kind == ATOLL_ALL_GATHER_V || kind == ATOLL_REDUCE_SCATTER_V;
}
constexpr bool is_message(std::int32_t kind) noexcept {
  return kind == ATOLL_SEND || kind == ATOLL_RECV;
}

// This rank's factor; 1 for an operation of an older core.
double factor_of(const atoll_operation& operation) noexcept;

// Throws Error(ATOLL_INVALID_ARGUMENT), or ATOLL_UNSUPPORTED for memory other than the host's,
// unless `operation` can be performed by rank `rank` of a group of `nranks`: known kind, dtype and
// op, a peer of the group, counts that add up, buffers where they are needed, a factor where there
// can be one, sizes below 2^63 bytes.
void check_operation(const atoll_operation& operation, int rank, int nranks);

}  // namespace atoll_sdk
