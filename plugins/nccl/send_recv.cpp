// Those of one group cannot wait for each other.
#include "collectives.hpp"

namespace atoll_sdk::nccl {

ncclResult_t send_recv(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const ncclDataType_t type = type_of(operation.dtype);
  if (operation.kind == ATOLL_SEND) {
    return ncclSend(operation.src, operation.count, type, operation.peer, comm.nccl(), stream);
  }
  return ncclRecv(operation.dst, operation.count, type, operation.peer, comm.nccl(), stream);
}

}  // namespace atoll_sdk::nccl
