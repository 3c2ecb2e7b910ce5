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

// The sends and receives of a group, under way at the same time.
void send_recv(Comm& comm, const std::vector<const atoll_operation*>& operations);

}  // namespace atoll_sdk::mpi
