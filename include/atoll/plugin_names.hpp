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
inline constexpr std::array<std::string_view, 15> kinds = {
    "barrier",          "broadcast",    "all_gather", "reduce_scatter",
    "all_reduce",       "all_to_all",   "send",       "recv",
    "reduce",           "gather",       "scatter",    "all_gather_v",
    "reduce_scatter_v", "all_to_all_v", "gather_v"};
static_assert(kinds[ATOLL_GATHER_V] == kinds.back());

struct Dtype {
  std::string_view name;
  std::size_t size;  // size of an element in bytes
};
inline constexpr std::array<Dtype, 15> dtypes = {{{"f32", 4},
                                                  {"bf16", 2},
                                                  {"f16", 2},
                                                  {"f64", 8},
                                                  {"i32", 4},
                                                  {"i64", 8},
                                                  {"u8", 1},
                                                  {"i8", 1},
                                                  {"u16", 2},
                                                  {"u32", 4},
                                                  {"u64", 8},
                                                  {"f8e4m3", 1},
                                                  {"f8e5m2", 1},
                                                  {"i16", 2},
                                                  {"bool", 1}}};
static_assert(dtypes[ATOLL_BOOL].name == dtypes.back().name);

inline constexpr std::array<std::string_view, 8> ops = {"sum",     "avg",  "min", "max",
                                                        "product", "band", "bor", "bxor"};
static_assert(ops[ATOLL_BXOR] == ops.back());

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

constexpr bool is_integer(std::int32_t dtype) noexcept {
  return (dtype >= ATOLL_I32 && dtype <= ATOLL_U64) || dtype == ATOLL_I16 || dtype == ATOLL_BOOL;
}
// Returns true for the types that collectives can reduce: all but the 8-bit floating-point types.
constexpr bool is_reducible(std::int32_t dtype) noexcept {
  return within(dtypes, dtype) && dtype != ATOLL_F8E4M3 && dtype != ATOLL_F8E5M2;
}
constexpr bool is_bitwise(std::int32_t op) noexcept { return op >= ATOLL_BAND; }
// Returns true if `op` exists for elements of `dtype`: operators of bits exist for integers only,
// and averages of truth values do not exist.
constexpr bool is_reducible(std::int32_t dtype, std::int32_t op) noexcept {
  return is_reducible(dtype) && within(ops, op) && (!is_bitwise(op) || is_integer(dtype)) &&
         (dtype != ATOLL_BOOL || op != ATOLL_AVG);
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
         kind == ATOLL_SCATTER || kind == ATOLL_GATHER_V;
}
// Returns true for the _v forms, which have one count per rank.
constexpr bool is_uneven(std::int32_t kind) noexcept {
  return kind == ATOLL_ALL_GATHER_V || kind == ATOLL_REDUCE_SCATTER_V ||
         kind == ATOLL_ALL_TO_ALL_V || kind == ATOLL_GATHER_V;
}
constexpr bool is_message(std::int32_t kind) noexcept {
  return kind == ATOLL_SEND || kind == ATOLL_RECV;
}

}  // namespace atoll_abi
