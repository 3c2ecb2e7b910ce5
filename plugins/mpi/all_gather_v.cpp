// MPI's own form counts in ints, and so do its displacements: what does not fit them goes as
// messages between all pairs.
#include <limits>

#include "collectives.hpp"
#include "sdk/describe.hpp"
#include "types.hpp"

namespace atoll_sdk::mpi {
namespace {

void as_messages(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  std::vector<atoll_operation> messages;
  auto* block = static_cast<std::byte*>(operation.dst);
  for (int r = 0; r < comm.size(); ++r) {
    const std::uint64_t own = operation.counts[comm.rank()];
    atoll_operation message = operation;
    message.peer = r;
    message.kind = ATOLL_SEND;
    message.count = own;
    if (own > 0 && (r != comm.rank() || operation.src != block)) messages.push_back(message);
    message.kind = ATOLL_RECV;
    message.dst = block;
    message.count = operation.counts[r];
    const bool there = r == comm.rank() && operation.src == block;
    if (message.count > 0 && !there) messages.push_back(message);
    block += message.count * element;
  }
  std::vector<const atoll_operation*> pointers;
  for (const atoll_operation& message : messages) pointers.push_back(&message);
  send_recv(comm, pointers);
}

}  // namespace

void all_gather_v(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  if (operation.count * element > std::numeric_limits<int>::max()) {
    return as_messages(comm, operation);
  }
  // In scratch memory, because MPI may read them as long as the operation is under way.
  const auto ranks = static_cast<std::size_t>(comm.size());
  int* bytes = reinterpret_cast<int*>(comm.scratch(2 * ranks * sizeof(int)));
  int* starts = bytes + ranks;
  int start = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    bytes[r] = static_cast<int>(operation.counts[r] * element);
    starts[r] = start;
    start += bytes[r];
  }
  const int own = bytes[comm.rank()];
  const std::byte* place = static_cast<std::byte*>(operation.dst) + starts[comm.rank()];
  const void* src = own > 0 && operation.src == place ? MPI_IN_PLACE : operation.src;
  comm.run("MPI_Iallgatherv", [&](MPI_Request* request) {
    return MPI_Iallgatherv(src, own, MPI_BYTE, operation.dst, bytes, starts, MPI_BYTE, comm.mpi(),
                           request);
  });
}

}  // namespace atoll_sdk::mpi
