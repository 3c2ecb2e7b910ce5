// Opens the TCP transport of a communicator. Every rank creates a listening socket per rail and
// publishes the ports in the store under the group's id. Ranks connect on demand
// (tcp_rendezvous.hpp).
#pragma once

#include <memory>

#include "atoll/plugin.h"
#include "collectives/communicator/group_store.hpp"
#include "collectives/exchange.hpp"
#include "collectives/transport.hpp"

namespace atoll_host_backend {

using atoll_collectives::GroupStore;

// As atoll_collectives::Comm::OpenNetwork.
std::unique_ptr<atoll_collectives::Transport> open_tcp(const atoll_host& host,
                                                       const atoll_group& group,
                                                       const atoll_collectives::Team& team,
                                                       const GroupStore& store);

}  // namespace atoll_host_backend
