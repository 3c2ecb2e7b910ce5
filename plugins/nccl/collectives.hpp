// The collectives, one file each. All of them are called inside a group and return NCCL's result,
// which in its nonblocking mode may be ncclInProgress; arguments are checked.
#pragma once

#include "comm.hpp"

namespace atoll_sdk::nccl {

ncclResult_t barrier(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t broadcast(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t all_gather(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t reduce_scatter(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t all_reduce(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t reduce(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t all_to_all(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t gather(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t scatter(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t all_gather_v(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t reduce_scatter_v(Comm& comm, const atoll_operation& operation, cudaStream_t stream);
ncclResult_t send_recv(Comm& comm, const atoll_operation& operation, cudaStream_t stream);

// Of two results of one group the one that counts: the first that is neither of success.
inline ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
  const bool fine = a == ncclSuccess || a == ncclInProgress;
  if (!fine) return a;
  return b == ncclSuccess ? a : b;
}

}  // namespace atoll_sdk::nccl
