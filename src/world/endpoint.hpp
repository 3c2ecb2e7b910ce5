// The sockets on which rank 0 serves the store, and the addresses at which other ranks reach it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/socket.hpp"
#include "world/launch.hpp"

namespace atoll_v1::atoll::store {

// Returns the addresses of the store. Without a token this is a Unix socket, which only processes
// of the host can reach.
std::vector<net::Address> addresses_of(const launch::Endpoint& endpoint);

// Returns the address of this host on the first of these interfaces. If this host lacks one of the
// interfaces, returns the address of the default route. The ranks can then still meet, and all of
// them throw the error about the missing interface.
std::string address_for(std::string_view interfaces);

// Listens on one free port, both on the address for other hosts and on loopback for this host.
// Stores the port in `endpoint`. Throws Error(io).
std::vector<net::Fd> listen_anywhere(launch::Endpoint& endpoint);

// Listens at an endpoint that all ranks know in advance; port 0 is replaced by a free port. Throws
// Error(mismatch) if another rank 0 of the job already listens there, and Error(io) for other
// reasons.
std::vector<net::Fd> listen_as_rank_0(launch::Endpoint& endpoint, int size);

// The end of errors about an address of the store that is not on the host of rank 0.
constexpr std::string_view torchrun_remedy =
    "; with torchrun, use --master-addr and --node-rank, because --rdzv-backend c10d may run rank "
    "0 on another host than MASTER_ADDR";

// Sends a join to the store of a job that must refuse this process. Rank 0 then names this process
// and the reason in its error about absent ranks. Returns the refusal; "" if no store of the job
// answers.
std::string refusal_of(const launch::Endpoint& endpoint, int rank, int size);

// Finds the job of this process. A process with ATOLL_RANK=5 and ATOLL_SIZE=2 notices its mistake
// alone, but rank 0 waits for rank 1, so this process also reports itself to rank 0.
launch::Job find_job(const Config& config);

}  // namespace atoll_v1::atoll::store
