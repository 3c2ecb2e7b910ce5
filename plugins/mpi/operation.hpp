// Checks of an operation.
#pragma once

#include "atoll/plugin.h"

namespace atoll_mpi {

// True if src must be multiplied by this rank's factor before MPI reduces it.
bool scaled(const atoll_operation& operation) noexcept;

// Throws Error(ATOLL_INVALID_ARGUMENT or ATOLL_UNSUPPORTED) unless rank `rank` of a group of
// `nranks` can perform the operation.
void validate(const atoll_operation& operation, int rank, int nranks);

}  // namespace atoll_mpi
