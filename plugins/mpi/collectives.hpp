// The collectives, one file each. All of them run one operation to its end; arguments are checked.
#pragma once

#include "comm.hpp"

namespace atoll_sdk::mpi {

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

// all_gather_v as messages between all pairs, however large and wherever src is on each rank.
void all_gather_messages(Comm& comm, const atoll_operation& operation);

// The sends and receives of a group, under way at the same time.
// Whose messages they are: the user's, or those of which a collective consists.
enum class Messages {
  own,
  of_collective
};
void send_recv(Comm& comm, const std::vector<const atoll_operation*>& operations,
               Messages whose = Messages::own);

}  // namespace atoll_sdk::mpi
