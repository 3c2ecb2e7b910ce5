#include "operation.hpp"

#include <fmt/format.h>

#include "comm.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::mpi {
bool scaled(const atoll_operation& operation) noexcept {
  return reduces(operation.kind) && operation.factor != 1.0 &&
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
  check_operation(operation, rank, nranks);
}

std::string describe(const atoll_operation& operation) {
  const std::string named = fmt::format("{} {}", kind_name(operation.kind), operation.sequence);
  if (operation.kind == ATOLL_BARRIER) return named;
  std::string text =
      fmt::format("{} ({} x {}, {} bytes", named, operation.count, dtype_name(operation.dtype),
                  operation.count * dtype_size(operation.dtype));
  if (reduces(operation.kind)) text += fmt::format(", {}", op_name(operation.op));
  if (has_root(operation.kind)) text += fmt::format(", root {}", operation.peer);
  if (is_message(operation.kind)) text += fmt::format(", peer {}", operation.peer);
  return text + ")";
}

}  // namespace atoll_sdk::mpi
