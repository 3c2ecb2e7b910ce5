#include "operation.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string_view>

#include "comm.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::mpi {
namespace {

std::string_view name_of(std::int32_t kind) {
  constexpr std::array<std::string_view, 5> since_1_1 = {"reduce", "gather", "scatter",
                                                         "all_gather_v", "reduce_scatter_v"};
  return kind < ATOLL_REDUCE ? kind_name(kind)
                             : since_1_1.at(static_cast<std::size_t>(kind - ATOLL_REDUCE));
}

[[noreturn]] void refuse(const atoll_operation& operation, std::string_view why) {
  throw Error(ATOLL_INVALID_ARGUMENT, describe(operation) + ": " + std::string(why));
}

bool counted(std::int32_t kind) {
  return kind == ATOLL_ALL_GATHER_V || kind == ATOLL_REDUCE_SCATTER_V;
}

void check_counts(const atoll_operation& operation, int nranks) {
  if (operation.counts == nullptr) refuse(operation, "counts is NULL");
  std::uint64_t left = operation.count;
  for (int r = 0; r < nranks; ++r) {
    if (operation.counts[r] > left) refuse(operation, "counts exceed their sum");
    left -= operation.counts[r];
  }
  if (left != 0) refuse(operation, "counts do not reach their sum");
}

// What a rank has to bring. Of the _v forms one side is empty on ranks whose count is 0.
struct Sides {
  bool src = true;
  bool dst = true;
};
Sides sides_since_1_1(const atoll_operation& operation, int rank) {
  const bool is_root = operation.peer == rank;
  switch (operation.kind) {
    case ATOLL_REDUCE:
    case ATOLL_GATHER:
      return {.dst = is_root};
    case ATOLL_SCATTER:
      return {.src = is_root};
    case ATOLL_ALL_GATHER_V:
      return {.src = operation.counts[rank] > 0};
    case ATOLL_REDUCE_SCATTER_V:
      return {.dst = operation.counts[rank] > 0};
  }
  return {};
}

void check_buffers(const atoll_operation& operation, int rank) {
  if (operation.count == 0) return;
  const Sides needed = sides_since_1_1(operation, rank);
  if (needed.src && operation.src == nullptr) refuse(operation, "src is NULL");
  if (needed.dst && operation.dst == nullptr) refuse(operation, "dst is NULL");
}

}  // namespace

bool scaled(const atoll_operation& operation) noexcept {
  return sums(operation.kind) && operation.factor != 1.0 &&
         (operation.op == ATOLL_SUM || operation.op == ATOLL_AVG) &&
         (operation.dtype == ATOLL_F32 || operation.dtype == ATOLL_F64);
}

void validate(const atoll_operation& operation, int rank, int nranks) {
  if (operation.size < sizeof(atoll_operation)) {
    throw Error(ATOLL_INVALID_ARGUMENT, "an operation of an older ABI");
  }
  if (!capability(operation.kind, operation.dtype, operation.op, operation.memory)) {
    throw Error(ATOLL_UNSUPPORTED,
                fmt::format("kind {}, dtype {}, op {}: not done by the mpi backend", operation.kind,
                            operation.dtype, operation.op));
  }
  if (operation.kind < ATOLL_REDUCE) return check_operation(operation, nranks);
  if (has_root(operation.kind) && (operation.peer < 0 || operation.peer >= nranks)) {
    refuse(operation, fmt::format("root {} is not one of {} ranks", operation.peer, nranks));
  }
  const std::uint64_t unit = dtype_size(operation.dtype) *
                             static_cast<std::uint64_t>(counted(operation.kind) ? 1 : nranks);
  if (operation.count > std::numeric_limits<std::int64_t>::max() / unit) {
    refuse(operation, "count too large");
  }
  if (counted(operation.kind)) check_counts(operation, nranks);
  check_buffers(operation, rank);
}

std::string describe(const atoll_operation& operation) {
  const std::string named = fmt::format("{} {}", name_of(operation.kind), operation.sequence);
  if (operation.kind == ATOLL_BARRIER) return named;
  std::string text =
      fmt::format("{} ({} x {}, {} bytes", named, operation.count, dtype_name(operation.dtype),
                  operation.count * dtype_size(operation.dtype));
  if (sums(operation.kind)) text += fmt::format(", {}", op_name(operation.op));
  if (has_root(operation.kind)) text += fmt::format(", root {}", operation.peer);
  if (is_message(operation.kind)) text += fmt::format(", peer {}", operation.peer);
  return text + ")";
}

}  // namespace atoll_sdk::mpi
