// all_gather_v: uses MPI_Iallgatherv, or messages between all pairs of ranks if the data exceeds
// MPI's int counts and displacements. all_gather.cpp explains how in-place data is handled.
#include <cstring>
#include <limits>
#include <numeric>

#include "collectives.hpp"
#include "in_place.hpp"
#include "sdk/operation.hpp"
#include "types.hpp"

namespace atoll_mpi {

void all_gather_messages(Comm& comm, const atoll_operation& operation) {
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
  send_recv(comm, pointers, Messages::of_collective);
}

void all_gather_v(Comm& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t total = operation.count * element;
  if (total > std::numeric_limits<int>::max()) return all_gather_messages(comm, operation);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::uint64_t before = std::accumulate(operation.counts, operation.counts + me, 0ULL);
  const std::uint64_t own = operation.counts[me] * element;
  const std::byte* place = static_cast<std::byte*>(operation.dst) + before * element;
  const bool in_place = own > 0 && operation.src == place;
  const void* src = operation.src;
  const bool bounces = total <= bounce_bytes;
  if (!bounces) {
    const Sources wish = in_place ? Sources::in_place : Sources::elsewhere;
    const Sources all = agree(comm, own > 0 ? wish : Sources::mixed);
    if (all == Sources::mixed) return all_gather_messages(comm, operation);
    if (all == Sources::in_place) src = MPI_IN_PLACE;
  }
  // The arrays of sizes and offsets are in scratch memory, because MPI may read them while the
  // operation is in flight, even after an aborted wait.
  const bool copies = bounces && in_place;
  int* bytes = reinterpret_cast<int*>(comm.scratch(2 * ranks * sizeof(int) + (copies ? own : 0)));
  int* starts = bytes + ranks;
  if (copies) src = std::memcpy(starts + ranks, src, own);
  int start = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    bytes[r] = static_cast<int>(operation.counts[r] * element);
    starts[r] = start;
    start += bytes[r];
  }
  comm.run("MPI_Iallgatherv", [&](MPI_Request* request) {
    return MPI_Iallgatherv(src, static_cast<int>(own), MPI_BYTE, operation.dst, bytes, starts,
                           MPI_BYTE, comm.mpi(), request);
  });
}

}  // namespace atoll_mpi
