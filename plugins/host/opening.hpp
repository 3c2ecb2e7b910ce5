// Opens a communicator: the ranks of a group find each other through the store and connect.
//
// The ranks of each host first open shared memory (sharing.hpp). Then every rank of a group with
// several hosts creates a listening socket per rail and publishes the ports in the store under the
// group's id. Ranks of different hosts connect on demand (tcp_rendezvous.hpp), and the ranks of a
// host that cannot share memory connect to each other in the same way.
#pragma once

#include <functional>
#include <memory>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "host/sharing.hpp"
#include "host/tcp_transport.hpp"

namespace atoll_host_backend {

struct Transports {
  // The group as the transports connect it: each rank of a host without shared memory counts as a
  // host.
  std::unique_ptr<SplitGroup> group;
  // Transport through shared memory; null if this rank is alone on its host.
  std::unique_ptr<atoll_collectives::ShmTransport> shm;
  // Transport to the ranks of other hosts; null if the group has one host.
  std::unique_ptr<TcpTransport> tcp;
  // Lets ranks that are not connected yet know that this rank has closed; null without `tcp`.
  std::function<void()> retract;
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
