// Opens a communicator: the ranks of a group find each other and connect.
//
// Every rank creates an inbox in shared memory if the group has other ranks on its host, and a
// listening socket per rail if it has ranks elsewhere. It publishes both in the store under the
// group's id, reads what the others published, attaches to their inboxes and connects the sockets.
// When all other ranks of the host have attached, it removes the name of its inbox.
#pragma once

#include <memory>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "host/tcp_transport.hpp"

namespace atoll_host_backend {

struct Transports {
  std::unique_ptr<atoll_collectives::ShmTransport> shm;  // null if this rank is alone on its host
  std::unique_ptr<TcpTransport> tcp;                     // null if the group has one host
};

// Fills in the name, ranks and sizes of `team`, but not its routes. Throws
// Error(ATOLL_INVALID_ARGUMENT).
void describe_team(const atoll_group& group, atoll_collectives::Team& team);

// Collective. Throws atoll_sdk::Error; ATOLL_TIMEOUT names the absent ranks.
Transports open_transports(const atoll_host& host, const atoll_group& group,
                           const atoll_collectives::Team& team);

}  // namespace atoll_host_backend
