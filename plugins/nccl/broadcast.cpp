// The root's data lies in src or, where that is NULL, in dst.
#include "collectives.hpp"

namespace atoll_sdk::nccl {

ncclResult_t broadcast(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const void* src = operation.src != nullptr ? operation.src : operation.dst;
  void* dst = operation.dst != nullptr ? operation.dst : const_cast<void*>(operation.src);
  return ncclBroadcast(src, dst, operation.count, type_of(operation.dtype), operation.peer,
                       comm.nccl(), stream);
}

}  // namespace atoll_sdk::nccl
