// Decides which hosts of a group share memory, and opens the shared memory of this rank's host.
//
// Each rank of a host publishes in the store the address of a Unix socket, and the ranks pass their
// inboxes (memory files) to each other over these sockets. If the kernel refuses that to any of
// them, for example because a security policy forbids it or because the ranks run as different
// users, no rank of this host opens shared memory. The first rank of each host publishes the
// result, and rank 0 of the group publishes the hosts without shared memory, because all ranks need
// one layout.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/communicator/group_store.hpp"
#include "collectives/exchange.hpp"
#include "collectives/layout.hpp"
#include "collectives/shared_memory/shm_transport.hpp"

namespace atoll_collectives {

struct Sharing {
  // Transport through shared memory; null if this rank is alone on its host or if the ranks of this
  // host cannot share memory.
  std::unique_ptr<ShmTransport> shm;
  // The affinity masks of the ranks of this host, from own_processors(); at least that of this
  // rank.
  std::vector<std::string> masks{};
  std::set<int> split{};  // hosts of the layout whose ranks cannot share memory
};

// Collective over the group. Logs the reason if the ranks of this host cannot share memory. Throws
// Error; an error with ATOLL_TIMEOUT names the absent ranks.
Sharing share_memory(const atoll_core& core, const atoll_group& group, const Team& team,
                     const GroupStore& store);

// A copy of a group that treats each rank of some hosts as if it ran alone on a host.
class SplitGroup {
 public:
  SplitGroup(const atoll_group& group, const std::set<int>& split);
  SplitGroup(const SplitGroup&) = delete;
  SplitGroup& operator=(const SplitGroup&) = delete;
  const atoll_group& get() const noexcept { return group_; }

 private:
  std::vector<atoll_placement> placements_;
  std::vector<const atoll_placement*> pointers_;
  atoll_group group_{};
};

}  // namespace atoll_collectives
