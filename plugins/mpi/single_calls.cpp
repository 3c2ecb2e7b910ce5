// The collectives that are one MPI call each: barrier, broadcast, all_to_all, gather and scatter.
// MPI chooses the algorithm. In gather and scatter, the root may pass MPI_IN_PLACE whatever the
// other ranks pass, so the ranks need no agreement about in-place data.
#include <cstring>

#include "collectives.hpp"
#include "sdk/backend.hpp"
#include "types.hpp"

namespace atoll_mpi {

void barrier(MpiCommunicator& comm, const atoll_operation&) {
  comm.run("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm.mpi(), request); });
}

// The root copies src to dst first, because MPI_Ibcast has only one buffer.
void broadcast(MpiCommunicator& comm, const atoll_operation& operation) {
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

void all_to_all(MpiCommunicator& comm, const atoll_operation& operation) {
  const Block block(comm.session(), operation.count * dtype_size(operation.dtype));
  comm.run("MPI_Ialltoall", [&](MPI_Request* request) {
    return MPI_Ialltoall(operation.src, block.count(), block.type(), operation.dst, block.count(),
                         block.type(), comm.mpi(), request);
  });
}

void gather(MpiCommunicator& comm, const atoll_operation& operation) {
  const Block block(comm.session(), operation.count * dtype_size(operation.dtype));
  const bool in_place =
      comm.rank() == operation.peer && operation.src == own_block(comm, operation, operation.dst);
  const void* src = in_place ? MPI_IN_PLACE : operation.src;
  comm.run("MPI_Igather", [&](MPI_Request* request) {
    return MPI_Igather(src, block.count(), block.type(), operation.dst, block.count(), block.type(),
                       operation.peer, comm.mpi(), request);
  });
}

void scatter(MpiCommunicator& comm, const atoll_operation& operation) {
  const Block block(comm.session(), operation.count * dtype_size(operation.dtype));
  const bool in_place =
      comm.rank() == operation.peer && operation.dst == own_block(comm, operation, operation.src);
  void* dst = in_place ? MPI_IN_PLACE : operation.dst;
  comm.run("MPI_Iscatter", [&](MPI_Request* request) {
    return MPI_Iscatter(operation.src, block.count(), block.type(), dst, block.count(),
                        block.type(), operation.peer, comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
