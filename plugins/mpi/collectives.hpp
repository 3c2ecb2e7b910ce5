// Declares the collectives of the mpi backend. Each is implemented in a file of its name. A
// function performs one operation, whose arguments have been checked, and returns when the
// operation is complete on this rank.
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

// Performs all_gather_v as messages between all pairs of ranks. Unlike MPI_Allgatherv, this
// supports any size, and some ranks may be in place while others are not.
void all_gather_messages(Comm& comm, const atoll_operation& operation);

// Where messages come from: calls of send and recv (`own`), or a collective that is built from
// messages (`of_collective`).
enum class Messages {
  own,
  of_collective
};
// Performs all sends and receives of a group at the same time, and returns when all are complete.
void send_recv(Comm& comm, const std::vector<const atoll_operation*>& operations,
               Messages whose = Messages::own);

}  // namespace atoll_mpi
