#include "sdk/describe.hpp"

#include <fmt/format.h>

#include <limits>

#include "sdk/guard.hpp"

namespace atoll_sdk {
namespace {

using atoll_abi::within;

[[noreturn]] void refuse(const atoll_operation& operation, std::string_view why) {
  throw Error(ATOLL_INVALID_ARGUMENT,
              fmt::format("{} {}: {}", kind_name(operation.kind), operation.sequence, why));
}

void check_size(const atoll_operation& operation, int nranks) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const int blocks = is_uneven(operation.kind) ? 1 : nranks;
  const std::uint64_t unit = dtype_size(operation.dtype) * static_cast<std::uint64_t>(blocks);
  if (operation.count > limit / unit) refuse(operation, "count too large");
}

void check_counts(const atoll_operation& operation, int nranks) {
  if (operation.size < sizeof(atoll_operation) || operation.counts == nullptr) {
    refuse(operation, "no counts");
  }
  std::uint64_t sum = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    if (operation.counts[rank] > operation.count) refuse(operation, "counts exceed their sum");
    sum += operation.counts[rank];
  }
  if (sum != operation.count) refuse(operation, "counts do not add up");
}

// What a rank has to bring. Of the sender of a broadcast either will do, its receivers need no src.
// Of the _v forms one side is empty on ranks whose count is 0.
struct Sides {
  bool src = true;
  bool dst = true;
};

Sides sides_of(const atoll_operation& operation, int rank) {
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
    default:
      return {};
  }
}

void check_buffers(const atoll_operation& operation, int rank) {
  if (operation.count == 0 || operation.kind == ATOLL_BARRIER) return;
  const Sides needed = sides_of(operation, rank);
  if (needed.src && operation.src == nullptr) refuse(operation, "src is NULL");
  if (needed.dst && operation.dst == nullptr) refuse(operation, "dst is NULL");
}

void check_factor(const atoll_operation& operation) {
  if (factor_of(operation) == 1.0) return;
  const bool floating = operation.dtype == ATOLL_F32 || operation.dtype == ATOLL_BF16 ||
                        operation.dtype == ATOLL_F16 || operation.dtype == ATOLL_F64;
  const bool sums = operation.op == ATOLL_SUM || operation.op == ATOLL_AVG;
  if (!reduces(operation.kind) || !floating || !sums) {
    refuse(operation, "a factor goes with sums of floating types only");
  }
}

}  // namespace

double factor_of(const atoll_operation& operation) noexcept {
  return operation.size >= sizeof(atoll_operation) ? operation.factor : 1.0;
}

void check_operation(const atoll_operation& operation, int rank, int nranks, std::int32_t memory) {
  if (!within(atoll_abi::kinds, operation.kind)) refuse(operation, "unknown kind of operation");
  if (operation.memory != memory) {
    throw Error(ATOLL_UNSUPPORTED,
                fmt::format("{} {}: this backend takes {} memory only", kind_name(operation.kind),
                            operation.sequence, memory == ATOLL_MEMORY_HOST ? "host" : "GPU"));
  }
  if (operation.kind == ATOLL_BARRIER) return;
  if (!within(atoll_abi::dtypes, operation.dtype)) refuse(operation, "unknown dtype");
  if (reduces(operation.kind) && !within(atoll_abi::ops, operation.op))
    refuse(operation, "unknown reduction");
  const bool has_peer = has_root(operation.kind) || is_message(operation.kind);
  if (has_peer && (operation.peer < 0 || operation.peer >= nranks)) {
    refuse(operation, fmt::format("peer {} is not one of {} ranks", operation.peer, nranks));
  }
  check_size(operation, nranks);
  if (is_uneven(operation.kind)) check_counts(operation, nranks);
  check_factor(operation);
  check_buffers(operation, rank);
}

}  // namespace atoll_sdk
