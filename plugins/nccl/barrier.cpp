// NCCL has none: the maximum of one word, which no rank has before all ranks have come.
#include "collectives.hpp"

namespace atoll_sdk::nccl {

ncclResult_t barrier(Comm& comm, const atoll_operation&, cudaStream_t stream) {
  return ncclAllReduce(comm.barrier_word(), comm.barrier_word(), 1, ncclInt32, ncclMax, comm.nccl(),
                       stream);
}

}  // namespace atoll_sdk::nccl
