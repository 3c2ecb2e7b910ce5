// Names and properties of the constants in plugin.h. The API, backends, tuning files, logs and
// error texts all use these names. Depends on plugin.h alone, so that backends can include this
// header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "atoll/plugin.h"

namespace atoll_abi {

// Names of the kinds of operations, indexed by atoll_collective_kind. Each new kind needs an entry.
inline constexpr std::array<std::string_view, 13> kinds = {
    "barrier",         "broadcast",  "all_gather", "reduce_scatter",
    "all_reduce",      "all_to_all", "send",       "recv",
    "reduce",          "gather",     "scatter",    "all_gather_v",
    "reduce_scatter_v"};
static_assert(kinds[ATOLL_REDUCE_SCATTER_V] == kinds.back());

struct Dtype {
  std::string_view name;
  std::size_t size;  // size of an element in bytes
};
inline constexpr std::array<Dtype, 7> dtypes = {
    {{"f32", 4}, {"bf16", 2}, {"f16", 2}, {"f64", 8}, {"i32", 4}, {"i64", 8}, {"u8", 1}}};
static_assert(dtypes[ATOLL_U8].name == dtypes.back().name);

inline constexpr std::array<std::string_view, 4> ops = {"sum", "avg", "min", "max"};
static_assert(ops[ATOLL_MAX] == ops.back());

// Returns true if `number` is a valid index of `table`.
template <typename Table>
constexpr bool within(const Table& table, std::int32_t number) noexcept {
  return number >= 0 && static_cast<std::size_t>(number) < table.size();
}

// Return the name of a kind, dtype or op, such as "all_gather", "f32" or "sum", or "?" if plugin.h
// does not define the number.
constexpr std::string_view kind_name(std::int32_t kind) noexcept {
  return within(kinds, kind) ? kinds[static_cast<std::size_t>(kind)] : "?";
}
constexpr std::string_view dtype_name(std::int32_t dtype) noexcept {
  return within(dtypes, dtype) ? dtypes[static_cast<std::size_t>(dtype)].name : "?";
}
constexpr std::string_view op_name(std::int32_t op) noexcept {
  return within(ops, op) ? ops[static_cast<std::size_t>(op)] : "?";
}

// Returns the size of an element in bytes, or 0 for an unknown dtype.
constexpr std::size_t dtype_size(std::int32_t dtype) noexcept {
  return within(dtypes, dtype) ? dtypes[static_cast<std::size_t>(dtype)].size : 0;
}

// Returns the kind with this name, or -1 for an unknown name.
constexpr std::int32_t kind_of(std::string_view name) noexcept {
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind] == name) return static_cast<std::int32_t>(kind);
  }
  return -1;
}

constexpr bool reduces(std::int32_t kind) noexcept {
  return kind == ATOLL_REDUCE_SCATTER || kind == ATOLL_ALL_REDUCE || kind == ATOLL_REDUCE ||
         kind == ATOLL_REDUCE_SCATTER_V;
}
constexpr bool has_root(std::int32_t kind) noexcept {
  return kind == ATOLL_BROADCAST || kind == ATOLL_REDUCE || kind == ATOLL_GATHER ||
         kind == ATOLL_SCATTER;
}
// Returns true for all_gather_v and reduce_scatter_v, which have one count per rank.
constexpr bool is_uneven(std::int32_t kind) noexcept {
  return kind == ATOLL_ALL_GATHER_V || kind == ATOLL_REDUCE_SCATTER_V;
}
constexpr bool is_message(std::int32_t kind) noexcept {
  return kind == ATOLL_SEND || kind == ATOLL_RECV;
}

}  // namespace atoll_abi
