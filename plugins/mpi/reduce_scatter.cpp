// reduce_scatter and reduce_scatter_v: MPI chooses the algorithm and the order of the sums.
//
// If the data has at most `piece_bytes` bytes and no factor, src is passed to MPI directly.
// Otherwise the data is reduced in rounds: the same piece of every block is packed into scratch
// memory, because MPI needs the blocks of all ranks to be contiguous. Shorter blocks of the _v form
// contribute fewer elements or none. An in-place result goes through scratch memory as well: MPI's
// in-place form would write the result to the start of the buffer, over another rank's block, but
// atoll writes it to this rank's block and leaves the other blocks unchanged.
#include <algorithm>
#include <cstring>

#include "collectives.hpp"
#include "sdk/backend.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

// Scratch memory of one round, in which one piece of every block is reduced. MPI may read the
// counts while the operation is in flight, even after an aborted wait.
struct Round {
  int* counts;  // number of elements of each rank in this round
  std::byte* packed;
  std::byte* result;
};

Round lay_out(MpiCommunicator& comm, std::size_t packed, std::size_t result) {
  constexpr std::size_t line = 64;
  const auto rounded = [](std::size_t bytes) { return (bytes + line - 1) / line * line; };
  const std::size_t counts_bytes = rounded(static_cast<std::size_t>(comm.size()) * sizeof(int));
  std::byte* all = comm.scratch(counts_bytes + rounded(packed) + result + line);
  return {reinterpret_cast<int*>(all), all + counts_bytes, all + counts_bytes + rounded(packed)};
}

// Packs this round's elements of every block, which start at element `first`, one block after the
// other.
void pack(MpiCommunicator& comm, const atoll_operation& operation, const Round& round,
          std::uint64_t first) {
  const std::size_t element = dtype_size(operation.dtype);
  const auto* block = static_cast<const std::byte*>(operation.src);
  std::byte* to = round.packed;
  for (int r = 0; r < comm.size(); ++r) {
    const auto n = static_cast<std::uint64_t>(round.counts[r]);
    if (n > 0) scale(to, block + first * element, n, operation);
    to += n * element;
    block += count_of(operation, r) * element;
  }
}

}  // namespace

void reduce_scatter(MpiCommunicator& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  const bool uneven = is_uneven(operation.kind);
  const std::uint64_t total = operation.count * (uneven ? 1 : ranks);
  const std::uint64_t longest =
      uneven ? *std::max_element(operation.counts, operation.counts + ranks) : operation.count;
  const bool whole = total * element <= piece_bytes;
  const bool direct = whole && !scaled(operation);
  const std::uint64_t piece =
      whole ? longest : std::max<std::uint64_t>(packed_bytes / (element * ranks), 1);
  const std::uint64_t own = count_of(operation, comm.rank());
  auto* dst = static_cast<std::byte*>(operation.dst);
  const bool in_place = dst == own_block(comm, operation, operation.src);
  const std::uint64_t packed = direct ? 0 : whole ? total : piece * ranks;
  const Round round =
      lay_out(comm, packed * element, in_place ? std::min(own, piece) * element : 0);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);

  for (std::uint64_t first = 0; first < longest; first += piece) {
    for (int r = 0; r < comm.size(); ++r) {
      const std::uint64_t count = count_of(operation, r);
      round.counts[r] = static_cast<int>(std::min(count - std::min(first, count), piece));
    }
    if (!direct) pack(comm, operation, round, first);
    const void* src = direct ? operation.src : round.packed;
    const auto n = static_cast<std::size_t>(round.counts[comm.rank()]);
    // A rank without elements in this round may have no dst, and MPI writes nothing.
    std::byte* result = in_place || n == 0 ? round.result : dst + first * element;
    const char* call = uneven ? "MPI_Ireduce_scatter" : "MPI_Ireduce_scatter_block";
    comm.run(call, [&](MPI_Request* request) {
      return uneven ? MPI_Ireduce_scatter(src, result, round.counts, type, op, comm.mpi(), request)
                    : MPI_Ireduce_scatter_block(src, result, round.counts[0], type, op, comm.mpi(),
                                                request);
    });
    if (in_place && n > 0) std::memcpy(dst + first * element, result, n * element);
  }
  if (operation.op == ATOLL_AVG && own > 0) divide(dst, own, operation.dtype, comm.size());
}

}  // namespace atoll_mpi
