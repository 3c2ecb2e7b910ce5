// gather: MPI allows MPI_IN_PLACE on the root alone, so the ranks need no agreement about in-place
// data.
#include "collectives.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void gather(Comm& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const Block block(comm.session(), bytes);
  const void* src = operation.src;
  if (comm.rank() == operation.peer) {
    const std::byte* own =
        static_cast<std::byte*>(operation.dst) + bytes * static_cast<std::uint64_t>(comm.rank());
    if (src == own) src = MPI_IN_PLACE;
  }
  comm.run("MPI_Igather", [&](MPI_Request* request) {
    return MPI_Igather(src, block.count(), block.type(), operation.dst, block.count(), block.type(),
                       operation.peer, comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
