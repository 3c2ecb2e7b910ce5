// broadcast: the root copies src to dst first, because MPI_Ibcast has only one buffer.
#include <cstring>

#include "collectives.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void broadcast(Comm& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  if (comm.rank() == operation.peer && operation.src != operation.dst) {
    std::memcpy(operation.dst, operation.src, bytes);
  }
  const Block block(comm.session(), bytes);
  comm.run("MPI_Ibcast", [&](MPI_Request* request) {
    return MPI_Ibcast(operation.dst, block.count(), block.type(), operation.peer, comm.mpi(),
                      request);
  });
}

}  // namespace atoll_mpi
