// all_gather: MPI chooses the algorithm. For large blocks the ranks first agree whether their data
// is in place. If it is in place on all ranks, all pass MPI_IN_PLACE; if only on some, the ranks
// exchange messages instead. A small block that is in place is sent from scratch memory, because
// MPI forbids that src and dst overlap.
#include <cstring>

#include "collectives.hpp"
#include "in_place.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

void as_uneven_messages(Comm& comm, atoll_operation operation) {
  const std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm.size()), operation.count);
  operation.kind = ATOLL_ALL_GATHER_V;
  operation.count *= counts.size();
  operation.counts = counts.data();
  all_gather_messages(comm, operation);
}

}  // namespace

void all_gather(Comm& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const Block block(comm.session(), bytes);
  const std::byte* own =
      static_cast<std::byte*>(operation.dst) + bytes * static_cast<std::uint64_t>(comm.rank());
  const void* src = operation.src;
  const bool in_place = src == own;
  if (bytes > bounce_bytes) {
    const Sources all = agree(comm, in_place ? Sources::in_place : Sources::elsewhere);
    if (all == Sources::mixed) return as_uneven_messages(comm, operation);
    if (all == Sources::in_place) src = MPI_IN_PLACE;
  } else if (in_place) {
    src = std::memcpy(comm.scratch(bytes), src, bytes);
  }
  comm.run("MPI_Iallgather", [&](MPI_Request* request) {
    return MPI_Iallgather(src, block.count(), block.type(), operation.dst, block.count(),
                          block.type(), comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
