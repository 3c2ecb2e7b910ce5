// reduce_scatter_v: MPI chooses the algorithm and the order of the sums. As in reduce_scatter.cpp,
// data of more than `piece_bytes` bytes is reduced in rounds: the same piece of every block is
// packed into scratch memory, where shorter blocks contribute fewer elements or none. The result
// goes through scratch memory, because it may be in place, and because ranks with a count of 0 may
// have no dst.
#include <algorithm>
#include <cstring>

#include "collectives.hpp"
#include "operation.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

// Scratch memory of one round, in which one piece of every block is reduced.
struct Round {
  int* counts;  // number of elements of each rank in this round
  std::byte* packed;
  std::byte* result;
};

Round lay_out(Comm& comm, std::size_t packed, std::size_t result) {
  constexpr std::size_t line = 64;
  const auto rounded = [](std::size_t bytes) { return (bytes + line - 1) / line * line; };
  const std::size_t counts_bytes = rounded(static_cast<std::size_t>(comm.size()) * sizeof(int));
  std::byte* all = comm.scratch(counts_bytes + rounded(packed) + result + line);
  return {reinterpret_cast<int*>(all), all + counts_bytes, all + counts_bytes + rounded(packed)};
}

// Packs this round's elements of every block, which start at element `first`, one block after the
// other.
void pack(Comm& comm, const atoll_operation& operation, const Round& round, std::uint64_t first) {
  const std::size_t element = dtype_size(operation.dtype);
  const auto* block = static_cast<const std::byte*>(operation.src);
  std::byte* to = round.packed;
  for (int r = 0; r < comm.size(); ++r) {
    const auto n = static_cast<std::uint64_t>(round.counts[r]);
    const std::byte* from = block + first * element;
    if (n > 0 && scaled(operation)) {
      multiply(to, from, n, operation);
    } else if (n > 0) {
      std::memcpy(to, from, n * element);
    }
    to += n * element;
    block += operation.counts[r] * element;
  }
}

}  // namespace

void reduce_scatter_v(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  const std::uint64_t longest = *std::max_element(operation.counts, operation.counts + ranks);
  const bool whole = operation.count * element <= piece_bytes;
  const bool direct = whole && !scaled(operation);
  const std::uint64_t piece =
      whole ? longest : std::max<std::uint64_t>(packed_bytes / (element * ranks), 1);
  const std::uint64_t own = operation.counts[comm.rank()];
  const std::uint64_t most_packed = whole ? operation.count : piece * ranks;
  const Round round =
      lay_out(comm, direct ? 0 : most_packed * element, std::min(own, piece) * element);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);

  for (std::uint64_t first = 0; first < longest; first += piece) {
    for (std::uint64_t r = 0; r < ranks; ++r) {
      const std::uint64_t left = operation.counts[r] - std::min(first, operation.counts[r]);
      round.counts[r] = static_cast<int>(std::min(left, piece));
    }
    if (!direct) pack(comm, operation, round, first);
    comm.run("MPI_Ireduce_scatter", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter(direct ? operation.src : round.packed, round.result, round.counts,
                                 type, op, comm.mpi(), request);
    });
    const auto n = static_cast<std::size_t>(round.counts[comm.rank()]);
    if (n > 0) std::memcpy(dst + first * element, round.result, n * element);
  }
  if (operation.op == ATOLL_AVG && own > 0) divide(dst, own, operation.dtype, comm.size());
}

}  // namespace atoll_mpi
