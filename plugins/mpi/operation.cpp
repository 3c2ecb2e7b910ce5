#include "operation.hpp"

#include <fmt/format.h>

#include "comm.hpp"
#include "sdk/guard.hpp"
#include "sdk/operation.hpp"

namespace atoll_mpi {

bool scaled(const atoll_operation& operation) noexcept {
  return reduces(operation.kind) && operation.factor != 1.0 &&
         (operation.op == ATOLL_SUM || operation.op == ATOLL_AVG) &&
         (operation.dtype == ATOLL_F32 || operation.dtype == ATOLL_F64);
}

void validate(const atoll_operation& operation, int rank, int nranks) {
  if (!Comm::capability(operation.kind, operation.dtype, operation.op, operation.memory)) {
    throw Error(
        ATOLL_UNSUPPORTED,
        fmt::format("{}: the mpi backend does not support this operation", describe(operation)));
  }
  check_operation(operation, rank, nranks);
}

}  // namespace atoll_mpi
