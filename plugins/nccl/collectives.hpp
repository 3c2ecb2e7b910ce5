// Translates an operation into NCCL calls.
#pragma once

#include "comm.hpp"

namespace atoll_nccl {

// Issues the NCCL calls for an operation whose arguments have been checked. The caller calls
// ncclGroupStart() before and ncclGroupEnd() afterwards. The result may be ncclInProgress, because
// communicators are nonblocking.
ncclResult_t perform(Comm& comm, const atoll_operation& operation);

// Combines the results of two calls in one NCCL group. Returns the first error; without an error,
// returns ncclInProgress if either call is in progress.
inline ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
  const bool fine = a == ncclSuccess || a == ncclInProgress;
  if (!fine) return a;
  return b == ncclSuccess ? a : b;
}

}  // namespace atoll_nccl
