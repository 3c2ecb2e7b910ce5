// reduce: on the root, dst[i] = op over all ranks of src[i].
//
// On one host every rank reduces a slice and writes the result into the root's dst. If the root's
// dst is not in a registered window, or if the data is small, the root reduces all data.
//
// Over several hosts every rank sends all its data to the root, which reduces chunk by chunk.
//
// Bytes into the root's host, for S bytes of data per rank, N ranks, and h ranks on that host:
// (N - h) S. Order of the sum: an adjacent-pair tree over the ranks.
#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

void one_host(Group& group, const atoll_operation& operation) {
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

}  // namespace

void reduce(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return one_host(group, operation);
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();
  const std::size_t size = bytes(operation);
  if (group.rank() == operation.peer) {
    exchange.start();
    receive_and_reduce(group, exchange, {source(operation), size}, destination(operation),
                       operation);
  } else {
    exchange.send(operation.peer, {source(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_collectives
