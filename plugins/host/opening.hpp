// How the ranks of a new communicator find each other.
//
// Every rank creates what it needs (an inbox in shared memory if the group has other ranks on its
// host, a listening socket if it has some elsewhere), publishes it in the store under the group's
// id, reads what the others published, attaches to the inboxes and connects the sockets. It returns
// when all others have attached to its inbox, whose name it then removes.
#pragma once

#include <memory>

#include "atoll/plugin.h"
#include "host/tcp_transport.hpp"
#include "collectives/exchange.hpp"
#include "collectives/shm_transport.hpp"

namespace atoll_sdk::host {

struct Links {
  std::unique_ptr<atoll_sdk::ShmTransport> shm;  // NULL: alone on this host
  std::unique_ptr<TcpTransport> tcp;             // NULL: nobody elsewhere
};

// Fills name, ranks and sizes of `team`, not its routes. Throws Error(ATOLL_INVALID_ARGUMENT).
void describe_team(const atoll_group& group, atoll_sdk::Team& team);

// Collective. Throws atoll_sdk::Error: ATOLL_TIMEOUT names the ranks that did not come.
Links open_links(const atoll_host& host, const atoll_group& group, const atoll_sdk::Team& team);

}  // namespace atoll_sdk::host
