// Declares the collectives of the mpi backend. A function performs one operation, whose arguments
// have been checked, and returns when the operation is complete on this rank.
#pragma once

#include "communicator.hpp"
#include "sdk/backend.hpp"

namespace atoll_mpi {

void barrier(MpiCommunicator& comm, const atoll_operation& operation);
void broadcast(MpiCommunicator& comm, const atoll_operation& operation);
void all_gather(MpiCommunicator& comm, const atoll_operation& operation);
void reduce_scatter(MpiCommunicator& comm,
                    const atoll_operation& operation);  // also does reduce_scatter_v
void all_reduce(MpiCommunicator& comm, const atoll_operation& operation);
void reduce(MpiCommunicator& comm, const atoll_operation& operation);
void all_to_all(MpiCommunicator& comm, const atoll_operation& operation);
void gather(MpiCommunicator& comm, const atoll_operation& operation);
void scatter(MpiCommunicator& comm, const atoll_operation& operation);
void all_gather_v(MpiCommunicator& comm, const atoll_operation& operation);

// Where messages come from: calls of send and recv (`own`), or a collective that is built from
// messages (`of_collective`).
enum class Messages {
  own,
  of_collective
};
// Performs all sends and receives of a group at the same time, and returns when all are complete.
void send_recv(MpiCommunicator& comm, const std::vector<const atoll_operation*>& operations,
               Messages whose = Messages::own);

// Returns the number of elements in the block of `rank`.
inline std::uint64_t count_of(const atoll_operation& operation, int rank) {
  return is_uneven(operation.kind) ? operation.counts[rank] : operation.count;
}
// Returns the address of this rank's block in a buffer that holds the blocks of all ranks.
inline const std::byte* own_block(const MpiCommunicator& comm, const atoll_operation& operation,
                                  const void* buffer) {
  std::uint64_t before = 0;  // number of elements in the blocks of lower ranks
  for (int rank = 0; rank < comm.rank(); ++rank) before += count_of(operation, rank);
  return static_cast<const std::byte*>(buffer) + before * dtype_size(operation.dtype);
}

}  // namespace atoll_mpi
