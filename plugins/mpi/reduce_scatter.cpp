// reduce_scatter: MPI chooses the algorithm and the order of the sums.
//
// If the data has at most `piece_bytes` bytes and no factor, src is passed to MPI directly.
// Otherwise the data is reduced in rounds: the same piece of every block is packed into scratch
// memory, because MPI needs the blocks of all ranks to be contiguous. An in-place result goes
// through scratch memory as well: MPI's in-place form would write the result to the start of the
// buffer, over another rank's block, but atoll writes it to this rank's block and leaves the other
// blocks unchanged.
#include <algorithm>
#include <cstring>

#include "collectives.hpp"
#include "operation.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void reduce_scatter(Comm& comm, const atoll_operation& operation) {
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t block = operation.count * element;
  const bool whole = block * ranks <= piece_bytes;
  const bool direct = whole && !scaled(operation);
  const std::uint64_t piece =
      whole ? operation.count : std::max<std::uint64_t>(packed_bytes / (element * ranks), 1);
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  const bool in_place = dst == src + block * static_cast<std::uint64_t>(comm.rank());

  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const std::uint64_t n = std::min(piece, operation.count - first);
    const std::size_t bytes = n * element;
    const std::size_t packed = direct ? 0 : bytes * ranks;
    std::byte* scratch = comm.scratch(packed + (in_place ? bytes : 0));
    for (std::uint64_t r = 0; r < ranks && !direct; ++r) {
      const std::byte* from = src + r * block + first * element;
      if (scaled(operation)) {
        multiply(scratch + r * bytes, from, n, operation);
      } else {
        std::memcpy(scratch + r * bytes, from, bytes);
      }
    }
    std::byte* result = in_place ? scratch + packed : dst + first * element;
    comm.run("MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(direct ? src : scratch, result, static_cast<int>(n), type,
                                       op, comm.mpi(), request);
    });
    if (in_place) std::memcpy(dst + first * element, result, bytes);
  }
  if (operation.op == ATOLL_AVG) divide(dst, operation.count, operation.dtype, comm.size());
}

}  // namespace atoll_mpi
