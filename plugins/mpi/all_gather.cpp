#include "collectives.hpp"
#include "sdk/describe.hpp"
#include "types.hpp"

namespace atoll_sdk::mpi {

void all_gather(Comm& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const Block block(comm.session(), bytes);
  const std::byte* own =
      static_cast<std::byte*>(operation.dst) + bytes * static_cast<std::uint64_t>(comm.rank());
  const void* src = operation.src == own ? MPI_IN_PLACE : operation.src;
  comm.run("MPI_Iallgather", [&](MPI_Request* request) {
    return MPI_Iallgather(src, block.count(), block.type(), operation.dst, block.count(),
                          block.type(), comm.mpi(), request);
  });
}

}  // namespace atoll_sdk::mpi
