// gather: on the root, dst[r * n + i] = src[i] of rank r. gather_v: the same with blocks of
// different sizes, packed in rank order.
//
// On one host the root copies every rank's block into its dst. Over several hosts every rank sends
// its block to the root, all at the same time. The root receives the blocks of all other ranks
// once, which is the minimum.
#include "collectives/collectives.hpp"

namespace atoll_collectives {

void gather(Group& group, const atoll_operation& operation) {
  const Partition partition(group, operation);
  const int root = operation.peer;
  const bool is_root = group.rank() == root;
  if (group.one_host()) {
    for_each_block(group, operation, [&](int rank, const Block& one) {
      group.offer(rank, {Offer::From::src, 0, one.offset, one.bytes, root});
    });
    return move(group, operation, {partition.own.bytes, is_root ? partition.whole : 0});
  }
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();  // reports a mismatch if ranks passed different roots
  if (is_root) {
    for (const int peer : exchange.peers()) {
      const Block& one = partition.blocks[static_cast<std::size_t>(peer)];
      exchange.recv(peer, {destination(operation) + one.offset, one.bytes});
    }
    exchange.start();
    copy(destination(operation) + partition.own.offset, source(operation), partition.own.bytes);
  } else {
    exchange.send(root, {source(operation), partition.own.bytes});
  }
  exchange.run();
}

}  // namespace atoll_collectives
