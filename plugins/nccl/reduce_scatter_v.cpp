// A reduce of each rank's block to it, all of one group, which NCCL runs together.
#include "collectives.hpp"
#include "sdk/describe.hpp"

namespace atoll_sdk::nccl {

ncclResult_t reduce_scatter_v(Comm& comm, const atoll_operation& operation, cudaStream_t stream) {
  const std::size_t element = dtype_size(operation.dtype);
  const ncclDataType_t type = type_of(operation.dtype);
  const ncclRedOp_t op = op_of(operation.op);
  const auto* src = static_cast<const std::byte*>(operation.src);
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < comm.size(); ++root) {
    const std::uint64_t count = operation.counts[root];
    if (count > 0) {
      void* dst = root == comm.rank() ? operation.dst : nullptr;
      result = worse(result, ncclReduce(src, dst, count, type, op, root, comm.nccl(), stream));
    }
    src += count * element;
  }
  return result;
}

}  // namespace atoll_sdk::nccl
