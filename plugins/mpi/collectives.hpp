// The collectives, one file each. Each function runs one checked operation to its end.
#pragma once

#include "comm.hpp"

namespace atoll_mpi {

void barrier(Comm& comm, const atoll_operation& operation);
void broadcast(Comm& comm, const atoll_operation& operation);
void all_gather(Comm& comm, const atoll_operation& operation);
void reduce_scatter(Comm& comm, const atoll_operation& operation);
void all_reduce(Comm& comm, const atoll_operation& operation);
void reduce(Comm& comm, const atoll_operation& operation);
void all_to_all(Comm& comm, const atoll_operation& operation);
void gather(Comm& comm, const atoll_operation& operation);
void scatter(Comm& comm, const atoll_operation& operation);
void all_gather_v(Comm& comm, const atoll_operation& operation);
void reduce_scatter_v(Comm& comm, const atoll_operation& operation);

// all_gather_v as messages between all pairs of ranks: for any size, and any mixture of ranks with
// and without src in place.
void all_gather_messages(Comm& comm, const atoll_operation& operation);

// The origin of messages: calls of send and recv, or a collective that is built from messages.
enum class Messages {
  own,
  of_collective
};
// Runs all sends and receives of a group at the same time.
void send_recv(Comm& comm, const std::vector<const atoll_operation*>& operations,
               Messages whose = Messages::own);

}  // namespace atoll_mpi
