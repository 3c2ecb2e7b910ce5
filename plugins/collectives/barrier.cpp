// barrier: returns when all ranks have called it.
//
// On one host the ranks synchronize in shared memory. Over several hosts every rank exchanges
// signatures with every other rank: each of N ranks sends and receives 96 (N - 1) bytes. A
// dissemination barrier would need only log2 N messages per rank, but its timeout could not name
// the absent rank.
#include "collectives/collectives.hpp"

namespace atoll_collectives {

void barrier(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return move(group, operation, {0, 0});
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();
  exchange.run();
}

}  // namespace atoll_collectives
