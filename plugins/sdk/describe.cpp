#include "sdk/describe.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "sdk/guard.hpp"

namespace atoll_sdk {
namespace {

struct Dtype {
  std::string_view name;
  std::size_t size;
};

// By the numbers of plugin.h.
constexpr std::array<std::string_view, 8> kinds = {"barrier",        "broadcast",  "all_gather",
                                                   "reduce_scatter", "all_reduce", "all_to_all",
                                                   "send",           "recv"};
constexpr std::array<Dtype, 7> dtypes = {
    {{"f32", 4}, {"bf16", 2}, {"f16", 2}, {"f64", 8}, {"i32", 4}, {"i64", 8}, {"u8", 1}}};
constexpr std::array<std::string_view, 4> ops = {"sum", "avg", "min", "max"};

template <typename Table>
bool within(const Table& table, std::int32_t number) noexcept {
  return number >= 0 && static_cast<std::size_t>(number) < table.size();
}

[[noreturn]] void refuse(const atoll_operation& operation, std::string_view why) {
  throw Error(ATOLL_INVALID_ARGUMENT,
              fmt::format("{} {}: {}", kind_name(operation.kind), operation.sequence, why));
}

void check_size(const atoll_operation& operation, int nranks) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t unit = dtype_size(operation.dtype) * static_cast<std::uint64_t>(nranks);
  if (operation.count > limit / unit) refuse(operation, "count too large");
}

void check_buffers(const atoll_operation& operation) {
  if (operation.count == 0 || operation.kind == ATOLL_BARRIER) return;
  // The sender of a broadcast needs no dst, its receivers no src; which one this is, the algorithm
  // knows.
  const bool either = operation.kind == ATOLL_BROADCAST;
  const bool reads = operation.kind != ATOLL_RECV;
  const bool writes = operation.kind != ATOLL_SEND;
  if (either && operation.src == nullptr && operation.dst == nullptr)
    refuse(operation, "no buffer");
  if (!either && reads && operation.src == nullptr) refuse(operation, "src is NULL");
  if (!either && writes && operation.dst == nullptr) refuse(operation, "dst is NULL");
}

}  // namespace

std::string_view kind_name(std::int32_t kind) noexcept {
  return within(kinds, kind) ? kinds[static_cast<std::size_t>(kind)] : "?";
}

std::string_view dtype_name(std::int32_t dtype) noexcept {
  return within(dtypes, dtype) ? dtypes[static_cast<std::size_t>(dtype)].name : "?";
}

std::string_view op_name(std::int32_t op) noexcept {
  return within(ops, op) ? ops[static_cast<std::size_t>(op)] : "?";
}

std::size_t dtype_size(std::int32_t dtype) noexcept {
  return within(dtypes, dtype) ? dtypes[static_cast<std::size_t>(dtype)].size : 0;
}

void check_operation(const atoll_operation& operation, int nranks) {
  if (!within(kinds, operation.kind)) refuse(operation, "unknown kind of operation");
  if (operation.memory != ATOLL_MEMORY_HOST) {
    throw Error(ATOLL_UNSUPPORTED, fmt::format("{} {}: this backend takes host memory only",
                                               kind_name(operation.kind), operation.sequence));
  }
  if (operation.kind == ATOLL_BARRIER) return;
  if (!within(dtypes, operation.dtype)) refuse(operation, "unknown dtype");
  if (reduces(operation.kind) && !within(ops, operation.op)) refuse(operation, "unknown reduction");
  const bool has_peer = operation.kind == ATOLL_BROADCAST || is_message(operation.kind);
  if (has_peer && (operation.peer < 0 || operation.peer >= nranks)) {
    refuse(operation, fmt::format("peer {} is not one of {} ranks", operation.peer, nranks));
  }
  check_size(operation, nranks);
  check_buffers(operation);
}

}  // namespace atoll_sdk
