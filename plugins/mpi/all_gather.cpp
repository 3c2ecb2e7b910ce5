// all_gather and all_gather_v: MPI chooses the algorithm.
//
// MPI requires that either all ranks of a collective pass MPI_IN_PLACE or none, and a rank does not
// know whether the data of other ranks is in place. A small block that is in place is therefore
// sent from scratch memory, because MPI forbids that src and dst overlap. For large blocks the
// ranks first agree whether their data is in place. If it is in place on all ranks, all pass
// MPI_IN_PLACE; if only on some, the ranks exchange messages instead.
#include <cstring>
#include <limits>

#include "collectives.hpp"
#include "sdk/backend.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

// Where the ranks have their contributions: in place, that is, at the ranks' blocks of dst;
// elsewhere; or some in place and some elsewhere (`mixed`).
enum class Sources {
  in_place,
  elsewhere,
  mixed
};

// A block of up to this size that is in place is copied to scratch memory, which is faster than an
// agreement with the other ranks. All ranks must decide alike, so this limit is compared with a
// size that is equal on all ranks.
constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 16;

// Compares where the ranks have their data: returns the location that all ranks have in common, or
// `mixed` if the ranks differ. Collective over the communicator. A rank without data passes
// `mixed`, which agrees with any location.
Sources agree(MpiCommunicator& comm, Sources own) {
  // words[0] is 1 if this rank's data can count as `in_place`, and words[1] is 1 if it can count as
  // `elsewhere`; both are 1 if the rank has no data. words[2] and words[3] receive the minimum over
  // all ranks. The words are in scratch memory, because MPI may still access them after an aborted
  // wait.
  int* words = reinterpret_cast<int*>(comm.scratch(4 * sizeof(int)));
  words[0] = own != Sources::elsewhere ? 1 : 0;
  words[1] = own != Sources::in_place ? 1 : 0;
  comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
    return MPI_Iallreduce(words, words + 2, 2, MPI_INT, MPI_MIN, comm.mpi(), request);
  });
  if (words[2] != 0) return Sources::in_place;
  return words[3] != 0 ? Sources::elsewhere : Sources::mixed;
}

// Gathers a block of counts[r] elements from each rank r by messages between all pairs of ranks.
// Unlike MPI's calls, this supports any size, and some ranks may be in place while others are not.
void exchange_messages(MpiCommunicator& comm, const atoll_operation& operation,
                       const std::uint64_t* counts) {
  const std::size_t element = dtype_size(operation.dtype);
  std::vector<atoll_operation> messages;
  auto* block = static_cast<std::byte*>(operation.dst);
  for (int r = 0; r < comm.size(); ++r) {
    const bool there = r == comm.rank() && operation.src == block;
    atoll_operation message = operation;
    message.peer = r;
    message.kind = ATOLL_SEND;
    message.count = counts[comm.rank()];
    if (message.count > 0 && !there) messages.push_back(message);
    message.kind = ATOLL_RECV;
    message.dst = block;
    message.count = counts[r];
    if (message.count > 0 && !there) messages.push_back(message);
    block += message.count * element;
  }
  std::vector<const atoll_operation*> pointers;
  for (const atoll_operation& message : messages) pointers.push_back(&message);
  send_recv(comm, pointers, Messages::of_collective);
}

}  // namespace

void all_gather(MpiCommunicator& comm, const atoll_operation& operation) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const Block block(comm.session(), bytes);
  const void* src = operation.src;
  const bool in_place = src == own_block(comm, operation, operation.dst);
  if (bytes > bounce_bytes) {
    const Sources all = agree(comm, in_place ? Sources::in_place : Sources::elsewhere);
    if (all == Sources::mixed) {
      const std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm.size()),
                                              operation.count);
      return exchange_messages(comm, operation, counts.data());
    }
    if (all == Sources::in_place) src = MPI_IN_PLACE;
  } else if (in_place) {
    src = std::memcpy(comm.scratch(bytes), src, bytes);
  }
  comm.run("MPI_Iallgather", [&](MPI_Request* request) {
    return MPI_Iallgather(src, block.count(), block.type(), operation.dst, block.count(),
                          block.type(), comm.mpi(), request);
  });
}

// Uses messages between all pairs of ranks if the data exceeds MPI's int counts and displacements.
void all_gather_v(MpiCommunicator& comm, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const std::uint64_t total = operation.count * element;
  if (total > std::numeric_limits<int>::max()) {
    return exchange_messages(comm, operation, operation.counts);
  }
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::uint64_t own = operation.counts[comm.rank()] * element;
  const bool in_place = own > 0 && operation.src == own_block(comm, operation, operation.dst);
  const void* src = operation.src;
  const bool bounces = total <= bounce_bytes;
  if (!bounces) {
    const Sources wish = in_place ? Sources::in_place : Sources::elsewhere;
    const Sources all = agree(comm, own > 0 ? wish : Sources::mixed);
    if (all == Sources::mixed) return exchange_messages(comm, operation, operation.counts);
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
