// A message to the root from each rank; from the root itself unless its block is in its place.
#include "collectives.hpp"
#include "sdk/describe.hpp"

namespace atoll_sdk::nccl {

ncclResult_t gather(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const std::size_t block = operation.count * dtype_size(operation.dtype);
  const ncclDataType_t type = type_of(operation.dtype);
  auto* dst = static_cast<std::byte*>(operation.dst);
  const bool root = comm.rank() == operation.peer;
  const bool in_place =
      root && operation.src == dst + block * static_cast<std::size_t>(comm.rank());
  ncclResult_t result = ncclSuccess;
  if (!in_place) {
    result = ncclSend(operation.src, operation.count, type, operation.peer, comm.nccl(), stream);
  }
  if (!root) return result;
  for (int peer = 0; peer < comm.size(); ++peer, dst += block) {
    if (in_place && peer == comm.rank()) continue;
    result = worse(result, ncclRecv(dst, operation.count, type, peer, comm.nccl(), stream));
  }
  return result;
}

}  // namespace atoll_sdk::nccl
