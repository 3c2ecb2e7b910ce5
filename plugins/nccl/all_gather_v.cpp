// A broadcast of each rank's block, all of one group, which NCCL runs together.
#include "collectives.hpp"
#include "sdk/describe.hpp"

namespace atoll_sdk::nccl {

ncclResult_t all_gather_v(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const std::size_t element = dtype_size(operation.dtype);
  const ncclDataType_t type = type_of(operation.dtype);
  auto* dst = static_cast<std::byte*>(operation.dst);
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < comm.size(); ++root) {
    const std::uint64_t count = operation.counts[root];
    if (count > 0) {
      const void* src = root == comm.rank() ? operation.src : dst;
      result = worse(result, ncclBroadcast(src, dst, count, type, root, comm.nccl(), stream));
    }
    dst += count * element;
  }
  return result;
}

}  // namespace atoll_sdk::nccl
