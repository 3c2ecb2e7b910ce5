// all_to_all: MPI chooses the algorithm.
#include "collectives.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void all_to_all(Comm& comm, const atoll_operation& operation) {
  const Block block(comm.session(), operation.count * dtype_size(operation.dtype));
  comm.run("MPI_Ialltoall", [&](MPI_Request* request) {
    return MPI_Ialltoall(operation.src, block.count(), block.type(), operation.dst, block.count(),
                         block.type(), comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
