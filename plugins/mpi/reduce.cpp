// MPI chooses the algorithm and the order of the sums. Large counts go in pieces of piece_bytes.
// What has to be multiplied first is put where the result will be, or into scratch memory of a
// piece on ranks that get none.
#include <algorithm>

#include "collectives.hpp"
#include "operation.hpp"
#include "sdk/describe.hpp"
#include "types.hpp"

namespace atoll_sdk::mpi {

void reduce(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t piece = piece_bytes / element;
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  const bool is_root = comm.rank() == operation.peer;
  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const std::uint64_t n = std::min(piece, operation.count - first);
    std::byte* to = is_root ? dst + first * element : nullptr;
    const void* from = src + first * element;
    if (scaled(operation)) {
      std::byte* product = is_root ? to : comm.scratch(n * element);
      multiply(product, from, n, operation);
      from = product;
    }
    if (from == to) from = MPI_IN_PLACE;
    comm.run("MPI_Ireduce", [&](MPI_Request* request) {
      return MPI_Ireduce(from, to, static_cast<int>(n), type, op, operation.peer, comm.mpi(),
                         request);
    });
  }
  if (is_root && operation.op == ATOLL_AVG) {
    divide(dst, operation.count, operation.dtype, comm.size());
  }
}

}  // namespace atoll_sdk::mpi
