// Validates the operations that are submitted to the mpi backend.
#pragma once

#include "atoll/plugin.h"

namespace atoll_mpi {

// Returns true if src must be multiplied by this rank's factor before MPI reduces it.
bool scaled(const atoll_operation& operation) noexcept;

// Checks the operation that rank `rank` of a group of `nranks` ranks submits. Throws Error with
// ATOLL_INVALID_ARGUMENT if an argument is invalid, or with ATOLL_UNSUPPORTED if the backend does
// not support the operation.
void validate(const atoll_operation& operation, int rank, int nranks);

}  // namespace atoll_mpi
