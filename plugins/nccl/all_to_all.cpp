// A message to and from each rank, this one too. NCCL's own call is younger than the versions that
// are taken here.
#include "collectives.hpp"
#include "sdk/describe.hpp"

namespace atoll_sdk::nccl {

ncclResult_t all_to_all(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const std::size_t block = operation.count * dtype_size(operation.dtype);
  const auto* src = static_cast<const std::byte*>(operation.src);
  auto* dst = static_cast<std::byte*>(operation.dst);
  const ncclDataType_t type = type_of(operation.dtype);
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < comm.size(); ++peer, src += block, dst += block) {
    result = worse(result, ncclSend(src, operation.count, type, peer, comm.nccl(), stream));
    result = worse(result, ncclRecv(dst, operation.count, type, peer, comm.nccl(), stream));
  }
  return result;
}

}  // namespace atoll_sdk::nccl
