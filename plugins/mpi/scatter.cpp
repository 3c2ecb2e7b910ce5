// scatter: MPI allows MPI_IN_PLACE on the root alone, so the ranks need no agreement about in-place
// data.
#include "collectives.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void scatter(Comm& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const Block block(comm.session(), bytes);
  void* dst = operation.dst;
  if (comm.rank() == operation.peer) {
    const std::byte* own = static_cast<const std::byte*>(operation.src) +
                           bytes * static_cast<std::uint64_t>(comm.rank());
    if (dst == own) dst = MPI_IN_PLACE;
  }
  comm.run("MPI_Iscatter", [&](MPI_Request* request) {
    return MPI_Iscatter(operation.src, block.count(), block.type(), dst, block.count(),
                        block.type(), operation.peer, comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
