// gather: on the root, dst[r * n + i] = src[i] of rank r.
//
// On one host the root copies every rank's block into its dst. Over several hosts every rank sends
// its block to the root, all at the same time. With N blocks of B bytes, the root receives (N - 1)
// B bytes, which is the minimum.
#include "collectives/collectives.hpp"

namespace atoll_collectives {

void gather(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  const bool is_root = group.rank() == root;
  if (group.one_host()) {
    for (int rank = 0; rank < group.size(); ++rank) {
      group.offer(rank, {Offer::From::src, 0, block(rank, size), size, root});
    }
    const std::size_t whole = is_root ? block(group.size(), size) : 0;
    return move(group, operation, {size, whole});
  }
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();  // reports a mismatch if ranks passed different roots
  if (is_root) {
    for (const int peer : exchange.peers()) {
      exchange.recv(peer, {destination(operation) + block(peer, size), size});
    }
    exchange.start();
    copy(destination(operation) + block(root, size), source(operation), size);
  } else {
    exchange.send(root, {source(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_collectives
