// scatter: dst[i] of each rank = src[rank * n + i] of the root.
//
// On one host every rank copies its block from the root's src. Over several hosts the root sends
// every rank its block, all at the same time. With N blocks of B bytes, the root sends (N - 1) B
// bytes, which is the minimum.
#include "collectives/collectives.hpp"

namespace atoll_collectives {

void scatter(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  const bool is_root = group.rank() == root;
  if (group.one_host()) {
    for (int rank = 0; rank < group.size(); ++rank) {
      group.offer(root, {Offer::From::src, block(rank, size), 0, size, rank});
    }
    const std::size_t whole = is_root ? block(group.size(), size) : 0;
    return move(group, operation, {whole, size});
  }
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();  // reports a mismatch if ranks passed different roots
  if (is_root) {
    for (const int peer : exchange.peers()) {
      exchange.send(peer, {source(operation) + block(peer, size), size});
    }
    exchange.start();
    copy(destination(operation), source(operation) + block(root, size), size);
  } else {
    exchange.recv(root, {destination(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_collectives
