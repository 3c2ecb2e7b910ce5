// Opens a communicator: the ranks of a group find each other through the store and connect.
//
// Every rank creates an inbox in shared memory if the group has other ranks on its host, and a
// listening socket per rail if the group has ranks on other hosts. The rank publishes the addresses
// of both in the store under the group's id, reads the addresses of the other ranks, attaches to
// their inboxes, and connects to their sockets. When all other ranks of the host have attached to a
// rank's inbox, the rank removes the inbox's name.
#pragma once

#include <memory>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "host/tcp_transport.hpp"

namespace atoll_host_backend {

struct Transports {
  // Transport through shared memory; null if this rank is alone on its host.
  std::unique_ptr<atoll_collectives::ShmTransport> shm;
  // Transport to the ranks of other hosts; null if the group has one host.
  std::unique_ptr<TcpTransport> tcp;
};

// Checks `group` and fills in `team`, except for its routes and transports. Throws
// Error(ATOLL_INVALID_ARGUMENT) if the group is incomplete, or Error(ATOLL_UNSUPPORTED) if it is
// not on host memory.
void describe_team(const atoll_group& group, atoll_collectives::Team& team);

// Creates and connects the transports. Collective over the group. Throws atoll_sdk::Error; an error
// with ATOLL_TIMEOUT names the absent ranks.
Transports open_transports(const atoll_host& host, const atoll_group& group,
                           const atoll_collectives::Team& team);

}  // namespace atoll_host_backend
