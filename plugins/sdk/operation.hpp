// Validates an atoll_operation and describes it in error texts. The names and sizes come
// from atoll/plugin_names.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "atoll/plugin.h"
#include "atoll/plugin_names.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk {

using atoll_abi::dtype_name;
using atoll_abi::dtype_size;
using atoll_abi::has_root;
using atoll_abi::is_message;
using atoll_abi::is_uneven;
using atoll_abi::kind_name;
using atoll_abi::kind_of;
using atoll_abi::op_name;
using atoll_abi::reduces;

// Returns a text such as "all_reduce 17 (1000 x f32, 4000 bytes, sum)". The library adds the rank
// and the communicator to error texts, so this text contains neither.
inline std::string describe(const atoll_operation& operation) {
  std::string text =
      std::string(kind_name(operation.kind)) + " " + std::to_string(operation.sequence);
  if (operation.kind == ATOLL_BARRIER) return text;
  text += " (" + std::to_string(operation.count) + " x ";
  text += dtype_name(operation.dtype);
  text += ", " + std::to_string(operation.count * dtype_size(operation.dtype)) + " bytes";
  if (reduces(operation.kind)) (text += ", ") += op_name(operation.op);
  if (has_root(operation.kind)) text += ", root " + std::to_string(operation.peer);
  if (is_message(operation.kind)) text += ", peer " + std::to_string(operation.peer);
  return text + ")";
}

// Returns the label; "" if there is none.
inline std::string_view label_of(const atoll_operation& operation) noexcept {
  return operation.label != nullptr ? operation.label : "";
}

// Returns true if this kind, dtype and op exist and, for a reduction, the dtype can be reduced.
// The dtype is ignored for a barrier, and the op for a kind that does not reduce.
inline bool is_known(std::int32_t kind, std::int32_t dtype, std::int32_t op) noexcept {
  if (!atoll_abi::within(atoll_abi::kinds, kind)) return false;
  if (kind == ATOLL_BARRIER) return true;
  if (!reduces(kind)) return dtype_size(dtype) > 0;
  return atoll_abi::is_reducible(dtype) && atoll_abi::within(atoll_abi::ops, op);
}

namespace checks {

[[noreturn]] inline void refuse(const atoll_operation& operation, std::string_view why) {
  throw Error(ATOLL_INVALID_ARGUMENT, std::string(kind_name(operation.kind)) + " " +
                                          std::to_string(operation.sequence) + ": " +
                                          std::string(why));
}

inline void check_size(const atoll_operation& operation, int nranks) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const int blocks = is_uneven(operation.kind) ? 1 : nranks;
  const std::uint64_t unit = dtype_size(operation.dtype) * static_cast<std::uint64_t>(blocks);
  if (operation.count > limit / unit)
    refuse(operation, "the count is too large: sizes must stay below 2^63 bytes");
}

inline void check_counts(const atoll_operation& operation, int nranks) {
  if (operation.counts == nullptr) refuse(operation, "the counts are NULL");
  std::uint64_t sum = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    if (operation.counts[rank] > operation.count)
      refuse(operation, "one of the counts exceeds `count`, which must be their sum");
    sum += operation.counts[rank];
  }
  if (sum != operation.count) refuse(operation, "the sum of the counts differs from `count`");
}

// Checks the recv_counts and dst of an all_to_all_v.
inline void check_received(const atoll_operation& operation, int rank, int nranks) {
  if (operation.recv_counts == nullptr) refuse(operation, "the recv_counts are NULL");
  const std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t left = limit / dtype_size(operation.dtype);
  const std::uint64_t most = left;
  for (int peer = 0; peer < nranks; ++peer) {
    if (operation.recv_counts[peer] > left)
      refuse(operation, "the recv_counts are too large: sizes must stay below 2^63 bytes");
    left -= operation.recv_counts[peer];
  }
  if (left < most && operation.dst == nullptr) refuse(operation, "dst is NULL");
  if (operation.counts[rank] != operation.recv_counts[rank])
    refuse(operation, "the rank's count for itself differs between counts and recv_counts");
}

// Which buffers a rank must pass to an operation.
struct Sides {
  bool src = true;
  bool dst = true;
};

// Returns which buffers the rank must pass. The root of a broadcast may pass src or dst, and the
// other ranks need no src. In all_gather_v and gather_v a rank with a count of 0 needs no src; in
// reduce_scatter_v such a rank needs no dst. check_received() checks the dst of all_to_all_v.
inline Sides sides_of(const atoll_operation& operation, int rank) {
  const bool is_root = operation.peer == rank;
  switch (operation.kind) {
    case ATOLL_SEND:
      return {.dst = false};
    case ATOLL_RECV:
      return {.src = false};
    case ATOLL_BROADCAST:
      return {.src = is_root && operation.dst == nullptr,
              .dst = !is_root || operation.src == nullptr};
    case ATOLL_REDUCE:
    case ATOLL_GATHER:
      return {.dst = is_root};
    case ATOLL_SCATTER:
      return {.src = is_root};
    case ATOLL_ALL_GATHER_V:
      return {.src = operation.counts[rank] > 0};
    case ATOLL_REDUCE_SCATTER_V:
      return {.dst = operation.counts[rank] > 0};
    case ATOLL_GATHER_V:
      return {.src = operation.counts[rank] > 0, .dst = is_root};
    case ATOLL_ALL_TO_ALL_V:
      return {.dst = false};
    default:
      return {};
  }
}

inline void check_buffers(const atoll_operation& operation, int rank) {
  if (operation.count == 0) return;
  const Sides needed = sides_of(operation, rank);
  if (needed.src && operation.src == nullptr) refuse(operation, "src is NULL");
  if (needed.dst && operation.dst == nullptr) refuse(operation, "dst is NULL");
}

inline void check_factor(const atoll_operation& operation) {
  if (operation.factor == 1.0) return;
  const bool floating =
      atoll_abi::is_reducible(operation.dtype) && !atoll_abi::is_integer(operation.dtype);
  const bool sums = operation.op == ATOLL_SUM || operation.op == ATOLL_AVG;
  if (!reduces(operation.kind) || !floating || !sums) {
    refuse(operation,
           "a factor other than 1 is allowed only for sums and averages of floating types");
  }
}

}  // namespace checks

// Checks the arguments that rank `rank` of a group of `nranks` ranks passes to an operation: kind,
// dtype and op exist, the peer is in the group, the counts have the sum `count`, required buffers
// are not null, a factor is allowed, and sizes stay below 2^63 bytes. Throws
// Error(ATOLL_INVALID_ARGUMENT), or Error(ATOLL_UNSUPPORTED) if the buffers are not in `memory`.
inline void check_operation(const atoll_operation& operation, int rank, int nranks,
                            std::int32_t memory = ATOLL_MEMORY_CPU) {
  using namespace checks;
  if (!atoll_abi::within(atoll_abi::kinds, operation.kind)) {
    refuse(operation, "unknown kind of operation");
  }
  if (operation.memory != memory) {
    throw Error(ATOLL_UNSUPPORTED,
                std::string(kind_name(operation.kind)) + " " + std::to_string(operation.sequence) +
                    ": this backend supports " + (memory == ATOLL_MEMORY_CPU ? "CPU" : "GPU") +
                    " memory only");
  }
  if (operation.kind == ATOLL_BARRIER) return;
  if (dtype_size(operation.dtype) == 0) refuse(operation, "unknown dtype");
  if (reduces(operation.kind) && !atoll_abi::within(atoll_abi::ops, operation.op)) {
    refuse(operation, "unknown reduction");
  }
  if (reduces(operation.kind) && !atoll_abi::is_reducible(operation.dtype)) {
    refuse(operation, "8-bit floating-point elements cannot be reduced: reduce bf16 or f32");
  }
  const bool has_peer = has_root(operation.kind) || is_message(operation.kind);
  if (has_peer && (operation.peer < 0 || operation.peer >= nranks)) {
    refuse(operation, "peer " + std::to_string(operation.peer) +
                          " is invalid: the group has only " + std::to_string(nranks) + " ranks");
  }
  check_size(operation, nranks);
  if (is_uneven(operation.kind)) check_counts(operation, nranks);
  if (operation.kind == ATOLL_ALL_TO_ALL_V) check_received(operation, rank, nranks);
  check_factor(operation);
  check_buffers(operation, rank);
}

}  // namespace atoll_sdk
