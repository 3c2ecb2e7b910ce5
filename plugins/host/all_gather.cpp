// all_gather: dst[r * n + i] = src of rank r [i]. all_gather_v: the same with n[r] elements of rank
// r, packed.
//
// Vocabulary. Block: the bytes of one rank's contribution, B; all of them: S.
// Steps, one host. Every rank copies every other one's block straight to its place (sdk/move.cpp).
// Steps, several hosts.
//   two_level: each block crosses to each other host once (sdk/two_level.cpp).
//   ring: each rank passes on to the next one what it got from the one before.
//   flat: each rank sends its block to every other one, all pairs at the same time.
// Bytes between H hosts of h ranks, each way per host. two_level: (H - 1) / H S. ring, ranks of a
// host in a row: (N - 1) / N S. flat: h times two_level, in one trip: for small data.
#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

void one_host(Comm& comm, const atoll_operation& operation) {
  auto& group = comm.group();
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  const bool uneven = operation.kind == ATOLL_ALL_GATHER_V;
  std::size_t offset = 0;
  std::size_t own = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::size_t size = (uneven ? operation.counts[rank] : operation.count) * element;
    group.offers[static_cast<std::size_t>(rank)].push_back(
        {atoll_sdk::Offer::From::src, 0, offset, size, atoll_sdk::everybody});
    offset += size;
    if (rank == comm.rank()) own = size;
  }
  atoll_sdk::move(group, operation, {own, offset});
}

void flat(const Comm& comm, const atoll_operation& operation,
          const std::vector<atoll_sdk::Block>& blocks, atoll_sdk::Exchange& exchange) {
  const auto& own = blocks[static_cast<std::size_t>(comm.rank())];
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    const auto& theirs = blocks[static_cast<std::size_t>(peer)];
    exchange.send(peer, {source(operation), own.bytes});
    exchange.recv(peer, {destination(operation) + theirs.offset, theirs.bytes});
  }
  exchange.start();
}

}  // namespace

void all_gather(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return one_host(comm, operation);
  const auto blocks = blocks_of(comm, operation);
  const auto& own = blocks[static_cast<std::size_t>(comm.rank())];
  const std::size_t whole = blocks.back().offset + blocks.back().bytes;
  atoll_sdk::Exchange exchange(comm.team(), operation);
  switch (comm.tuning().choose(operation, whole)) {
    case Algorithm::flat:
      exchange.greet_all();
      flat(comm, operation, blocks, exchange);
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      break;
    case Algorithm::ring:
      exchange.greet_all();
      copy(destination(operation) + own.offset, source(operation), own.bytes);
      ring_all_gather(comm, blocks, destination(operation), exchange);
      break;
    case Algorithm::doubling:  // of all_reduce only, as the next one; the third of broadcast
    case Algorithm::halving:
    case Algorithm::chain:
    case Algorithm::two_level:
      greet_twins(comm, exchange);
      atoll_sdk::two_level_all_gather(
          comm.group(), operation, {own.bytes, whole}, blocks,
          {atoll_sdk::Offer::From::src, 0, own.offset, own.bytes, atoll_sdk::everybody}, exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
