// MPI chooses the algorithm and the order of the sums. Large counts go in pieces of piece_bytes.
// What has to be multiplied first is put into dst.
#include <algorithm>

#include "collectives.hpp"
#include "operation.hpp"
#include "sdk/describe.hpp"
#include "types.hpp"

namespace atoll_sdk::mpi {

void all_reduce(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t piece = piece_bytes / element;
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const int n = static_cast<int>(std::min(piece, operation.count - first));
    const void* from = src + first * element;
    if (scaled(operation)) {
      multiply(dst + first * element, from, static_cast<std::uint64_t>(n), operation);
      from = MPI_IN_PLACE;
    } else if (src == dst) {
      from = MPI_IN_PLACE;
    }
    comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
      return MPI_Iallreduce(from, dst + first * element, n, type, op, comm.mpi(), request);
    });
  }
  if (operation.op == ATOLL_AVG) divide(dst, operation.count, operation.dtype, comm.size());
}

}  // namespace atoll_sdk::mpi
