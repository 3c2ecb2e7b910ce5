// One operation as calls of NCCL.
#pragma once

#include "comm.hpp"

namespace atoll_nccl {

// Issues a checked operation between ncclGroupStart() and ncclGroupEnd(). The result may be
// ncclInProgress, because communicators are nonblocking.
ncclResult_t perform(Comm& comm, const atoll_operation& operation);

// Combines two results of one group: the first error, else ncclInProgress if either is in progress.
inline ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
  const bool fine = a == ncclSuccess || a == ncclInProgress;
  if (!fine) return a;
  return b == ncclSuccess ? a : b;
}

}  // namespace atoll_nccl
