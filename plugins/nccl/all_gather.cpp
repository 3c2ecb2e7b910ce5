// NCCL chooses the algorithm. Between islands its ring sends (n - 1) / n of the data through each
// host's links; core puts two levels in its place where that is modelled to pay.
#include "collectives.hpp"

namespace atoll_sdk::nccl {

ncclResult_t all_gather(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  return ncclAllGather(operation.src, operation.dst, operation.count, type_of(operation.dtype),
                       comm.nccl(), stream);
}

}  // namespace atoll_sdk::nccl
