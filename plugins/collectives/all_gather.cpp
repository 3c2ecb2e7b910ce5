// all_gather: dst[r * n + i] = src[i] of rank r. all_gather_v: the same with n[r] packed elements
// of rank r.
//
// On one host every rank copies every other rank's block straight to its place.
//
// Over several hosts:
//   two_level: each block crosses to each other host once (two_level.cpp).
//   ring: each rank passes on to the next rank what it received from the previous one.
//   flat: each rank sends its block to every other rank, all pairs at the same time.
//
// Bytes between H hosts with h ranks each, per host and direction, for S bytes in all: two_level
// (H - 1) / H S; ring with consecutive ranks on each host (N - 1) / N S; flat h times two_level,
// but in one message, so it suits small data.
#include "collectives/collectives.hpp"
#include "collectives/two_level.hpp"

namespace atoll_collectives {
namespace {

void one_host(Group& group, const atoll_operation& operation) {
  Extents extents{0, 0};
  for_each_block(group, operation, [&](int rank, const Block& block) {
    group.offers[static_cast<std::size_t>(rank)].push_back(
        {Offer::From::src, 0, block.offset, block.bytes, everybody});
    if (rank == group.rank()) extents.src = block.bytes;
    extents.dst += block.bytes;
  });
  move(group, operation, extents);
}

void flat(const Group& group, const atoll_operation& operation, const Partition& partition,
          Exchange& exchange) {
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    const auto& theirs = partition.blocks[static_cast<std::size_t>(peer)];
    exchange.send(peer, {source(operation), partition.own.bytes});
    exchange.recv(peer, {destination(operation) + theirs.offset, theirs.bytes});
  }
  exchange.start();
}

}  // namespace

void all_gather(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return one_host(group, operation);
  const Partition partition(group, operation);
  const Block own = partition.own;
  Exchange exchange(group.team, operation);
  switch (group.tuning.choose(operation, partition.whole)) {
    case Algorithm::flat:
      exchange.compare_with_all();
      flat(group, operation, partition, exchange);
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      break;
    case Algorithm::ring:
      exchange.compare_with_all();
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      ring_all_gather(group, partition.blocks, destination(operation), exchange);
      break;
    case Algorithm::doubling:  // never chosen for all_gather, like halving and chain
    case Algorithm::halving:
    case Algorithm::chain:
    case Algorithm::two_level:
      compare_with_counterparts(group, exchange);
      two_level_all_gather(group, operation, {own.bytes, partition.whole}, partition.blocks,
                           {Offer::From::src, 0, own.offset, own.bytes, everybody}, exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_collectives
