// all_reduce: MPI chooses the algorithm and the order of the sums. Large data is reduced in pieces
// of `packed_bytes`.
//
// MPI requires that all ranks pass MPI_IN_PLACE or none (Open MPI 4.1 chooses the algorithm by it),
// and a rank does not know whether the data of other ranks is in place. MPI_IN_PLACE is therefore
// never passed: data that is in place, or that has a factor, is sent from scratch memory.
#include <algorithm>

#include "collectives.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void all_reduce(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t piece = packed_bytes / element;
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const std::uint64_t n = std::min(piece, operation.count - first);
    const std::byte* from = src + first * element;
    if (scaled(operation) || src == dst) {
      from = scale(comm.scratch(n * element), from, n, operation);
    }
    comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
      return MPI_Iallreduce(from, dst + first * element, static_cast<int>(n), type, op, comm.mpi(),
                            request);
    });
  }
  if (operation.op == ATOLL_AVG) divide(dst, operation.count, operation.dtype, comm.size());
}

}  // namespace atoll_mpi
