#include "collectives.hpp"

namespace atoll_mpi {

void barrier(Comm& comm, const atoll_operation&) {
  comm.run("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm.mpi(), request); });
}

}  // namespace atoll_mpi
