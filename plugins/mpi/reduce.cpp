// all_reduce and reduce: MPI chooses the algorithm and the order of the sums. Large data is reduced
// in pieces.
#include <algorithm>

#include "collectives.hpp"
#include "sdk/backend.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

constexpr std::uint64_t most_for_reduce = 256 * 1024;  // maximum number of bytes for MPI_Ireduce
constexpr std::uint64_t large_piece =
    8 * 1024 * 1024;  // size in bytes of the pieces for MPI_Iallreduce

}  // namespace

// MPI requires that all ranks pass MPI_IN_PLACE or none (Open MPI 4.1 selects a different algorithm
// for it), and a rank does not know whether the data of other ranks is in place. MPI_IN_PLACE is
// therefore never passed: data that is in place, or that has a factor, is sent from scratch memory.
void all_reduce(MpiCommunicator& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t piece = packed_bytes / element;
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const std::uint64_t n = std::min(piece, operation.count - first);
    const std::byte* from = src + first * element;
    if (scaled(operation) || src == dst) {
      from = scale(comm.scratch(n * element), from, n, operation);
    }
    comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
      return MPI_Iallreduce(from, dst + first * element, static_cast<int>(n), type, op, comm.mpi(),
                            request);
    });
  }
  if (operation.op == ATOLL_AVG) divide(dst, operation.count, operation.dtype, comm.size());
}

// Data that has a factor is first multiplied by it: on the root into dst, on other ranks into
// scratch memory. Large data is reduced with MPI_Iallreduce in pieces of `large_piece`, because
// Open MPI's MPI_Ireduce takes many times as long as MPI_Iallreduce for data of 1 MiB and more.
void reduce(MpiCommunicator& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const bool on_all = operation.count * element > most_for_reduce;
  const std::uint64_t piece = (on_all ? large_piece : piece_bytes) / element;
  const auto* src = static_cast<const std::byte*>(operation.src);
  const MPI_Datatype type = reduction_type(operation.dtype);
  const MPI_Op op = reduction_op(comm.session(), operation.dtype, operation.op);
  auto* dst = static_cast<std::byte*>(operation.dst);
  const bool is_root = comm.rank() == operation.peer;
  for (std::uint64_t first = 0; first < operation.count; first += piece) {
    const std::uint64_t n = std::min(piece, operation.count - first);
    std::byte* to = is_root ? dst + first * element : nullptr;
    const void* from = src + first * element;
    // MPI_Iallreduce gets MPI_IN_PLACE on all ranks, so `to` must hold the data of this rank.
    if (scaled(operation) || on_all) {
      if (!is_root) to = comm.scratch(n * element);
      from = scale(to, src + first * element, n, operation);
    }
    if (on_all) {
      comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, to, static_cast<int>(n), type, op, comm.mpi(), request);
      });
      continue;
    }
    if (is_root && from == to) from = MPI_IN_PLACE;
    comm.run("MPI_Ireduce", [&](MPI_Request* request) {
      return MPI_Ireduce(from, is_root ? to : nullptr, static_cast<int>(n), type, op,
                         operation.peer, comm.mpi(), request);
    });
  }
  if (is_root && operation.op == ATOLL_AVG) {
    divide(dst, operation.count, operation.dtype, comm.size());
  }
}

}  // namespace atoll_mpi
