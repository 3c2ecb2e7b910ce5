// NCCL chooses the algorithm and with it the order of the sum.
#include "collectives.hpp"

namespace atoll_sdk::nccl {

ncclResult_t reduce(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  return ncclReduce(operation.src, operation.dst, operation.count, type_of(operation.dtype),
                    op_of(operation.op), operation.peer, comm.nccl(), stream);
}

}  // namespace atoll_sdk::nccl
