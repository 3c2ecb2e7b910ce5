// reduce: on the root, dst[i] = op over all ranks of src[i].
//
// On one host every rank reduces a slice and writes the result into the root's dst. If the root's
// dst is not in a registered window, or if the data is small, the root reduces all data.
//
// Over several hosts:
//   flat: every rank sends all its data to the root, which reduces chunk by chunk.
//   two_level: a reduce_scatter in which each rank sends its finished pieces to the root
//     (two_level.cpp).
//
// Bytes into the root's host, for S bytes of data per rank, N ranks, and h ranks on that host: flat
// (N - h) S; two_level S. Order of the sum: flat sums in an adjacent-pair tree over the ranks;
// two_level sums in the order that reduce_scatter.cpp describes.
#include <algorithm>

#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

void reduce_one_host(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const bool root = group.rank() == operation.peer;
  std::byte* dst = destination(operation);
  if (size <= small_bytes) {
    group.slices.push_back({0, size, operation.peer, dst});
  } else {
    const EvenSplit slices(size, group.size());
    for (int rank = 0; rank < group.size(); ++rank) {
      const Block slice = slices[rank];
      group.slices.push_back(
          {slice.offset, slice.bytes, rank, root ? dst + slice.offset : nullptr});
    }
  }
  sum(group, operation, {size, root ? size : 0},
      {.op = operation.op, .push = Sum::Push::root, .root = operation.peer});
}

void reduce_flat(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  if (group.rank() == operation.peer) {
    exchange.start();
    receive_and_reduce(group, exchange, {source(operation), size}, destination(operation),
                       operation);
  } else {
    exchange.send(operation.peer, {source(operation), size});
  }
}

// Queues a comparison of call signatures with the root and with this rank's counterparts, which are
// the ranks of other hosts with which it exchanges data. Ranks that passed different roots or
// counts thus report a mismatch.
void compare_with_root_and_counterparts(Group& group, int root, Exchange& exchange) {
  if (group.rank() == root) return exchange.compare_with_all();
  const auto known = group.layout.counterparts(group.rank());
  for (const int rank : known) exchange.compare_with(rank);
  if (std::ranges::find(known, root) == known.end()) exchange.compare_with(root);
}

}  // namespace

void reduce(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return reduce_one_host(group, operation);
  Exchange exchange(group.team, operation);
  if (group.tuning.choose(operation, bytes(operation)) == Algorithm::two_level) {
    compare_with_root_and_counterparts(group, operation.peer, exchange);
    two_level_reduce(group, operation, exchange);
  } else {
    exchange.compare_with_all();
    reduce_flat(group, operation, exchange);
  }
  exchange.run();
}

}  // namespace atoll_collectives
