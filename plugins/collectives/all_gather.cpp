// all_gather: on every rank, dst[r * n + i] = src[i] of rank r. all_gather_v: dst holds the n[r]
// elements of each rank r, one rank after the other, without gaps.
//
// On one host every rank copies the block of every other rank directly into its dst.
//
// Over several hosts:
//   two_level: each block is sent to each other host once (two_level.cpp).
//   ring: each rank passes the blocks that it receives from the previous rank on to the next.
//   flat: each rank sends its block to every other rank, all pairs at the same time.
//
// Bytes per host and direction, for a tensor of S bytes on H hosts and N ranks: two_level (H - 1) /
// H S; ring (N - 1) / N S if the ranks of each host are consecutive. With h ranks per host, flat
// sends h times the bytes of two_level, but needs only one message per pair of ranks, so it suits
// small data.
#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

void all_gather_one_host(Group& group, const atoll_operation& operation) {
  Extents extents{0, 0};
  for_each_block(group, operation, [&](int rank, const Block& block) {
    group.offer(rank, {Offer::From::src, 0, block.offset, block.bytes, everybody});
    if (rank == group.rank()) extents.src = block.bytes;
    extents.dst += block.bytes;
  });
  move(group, operation, extents);
}

void flat(const atoll_operation& operation, const Partition& partition, Exchange& exchange) {
  for (const int peer : exchange.peers()) {
    const auto& theirs = partition.blocks[static_cast<std::size_t>(peer)];
    exchange.send(peer, {source(operation), partition.own.bytes});
    exchange.recv(peer, {destination(operation) + theirs.offset, theirs.bytes});
  }
  exchange.start();
}

}  // namespace

void all_gather(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return all_gather_one_host(group, operation);
  const Partition partition(group, operation);
  const Block own = partition.own;
  Exchange exchange(group.team, operation);
  const Algorithm algorithm = group.tuning.choose(operation, partition.whole);
  compare(group, algorithm, exchange);
  switch (algorithm) {
    case Algorithm::flat:
      flat(operation, partition, exchange);
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      break;
    case Algorithm::ring:
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      ring_all_gather(group, partition.blocks, destination(operation), exchange);
      break;
    case Algorithm::doubling:  // doubling, halving and chain are never chosen for all_gather
    case Algorithm::halving:
    case Algorithm::chain:
    case Algorithm::two_level:
      two_level_all_gather(group, operation, {own.bytes, partition.whole}, partition.blocks,
                           {Offer::From::src, 0, own.offset, own.bytes, everybody}, exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_collectives
