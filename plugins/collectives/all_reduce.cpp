// all_reduce: dst[i] = op over all ranks of src[i].
//
// A slice is the part of the data that one rank reduces. Slices consist of whole cache lines; the
// last slices may be shorter or empty.
//
// On one host, every rank reduces all data itself if the data is small. Otherwise every rank reads
// its slice of every rank's src and, in the same pass, writes the result to every rank's dst. If a
// dst is not in a registered window, the results go through the staging buffers, chunk by chunk.
//
// Over several hosts:
//   two_level, ring: a reduce_scatter of the slices into dst, then an all_gather of the slices.
//   halving: for medium-sized data on many hosts; hosts exchange halves, quarters, ...
//     (halving.cpp).
//   doubling: for small data; hosts at distance 1, 2, 4, ... exchange all data (doubling.cpp).
//   flat: if the data is small, every rank sends all data to every other rank and reduces all data
//     itself. Otherwise a reduce_scatter, then an all_gather, between all pairs of ranks.
//
// In-place operation is safe: the reduced slice of another rank arrives only after that rank has
// received all contributions, so this rank's src for that slice has been sent. This rank's own
// slice of src is not sent to any rank.
//
// Bytes between H hosts, per host and direction, for S bytes of data: 2 (H - 1) / H S, which is the
// minimum, with two_level, with halving if H is a power of two, and with ring if each host has one
// rank.
//
// Order of the sum: flat, ring and two_level sum in the order that reduce_scatter.cpp describes;
// doubling.cpp and halving.cpp describe the order of doubling and halving.
#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

// Limits in bytes up to which the flat algorithm sends all data of a rank in one message, which is
// faster than sending slices in two messages. The first limit is for the data of one rank, the
// second for the data of all ranks together.
constexpr std::size_t small_flat_bytes = 4 * 1024;
constexpr std::size_t small_total = 64 * 1024;

void all_reduce_one_host(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  std::byte* dst = destination(operation);
  const Extents extents{size, size};
  if (size <= small_bytes || group.size() == 1) {
    group.slices.push_back({0, size, everybody, dst});
    sum(group, operation, extents, {.op = operation.op});
    return;
  }
  const EvenSplit slices(size, group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    const Block slice = slices[rank];
    group.slices.push_back({slice.offset, slice.bytes, rank, dst + slice.offset});
  }
  sum(group, operation, extents, {.op = operation.op, .push = Sum::Push::all});
}

void flat_small(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t stride = round_up_to_line(size);
  const auto scratch = group.scratch(stride * ranks);
  std::vector<const void*> parts(ranks, src);
  for (const int peer : exchange.peers()) {
    const auto part = scratch.subspan(block(peer, stride), size);
    exchange.send(peer, {src, size});
    exchange.recv(peer, part);
    parts[static_cast<std::size_t>(peer)] = part.data();
  }
  // Exchange::run() also completes the sends, because an in-place reduction overwrites the data
  // that they read.
  exchange.run();
  reduce_contributions(group, exchange, parts, destination(operation), operation.count, operation);
}

void flat(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  if (size <= small_flat_bytes && size * static_cast<std::size_t>(group.size()) <= small_total) {
    return flat_small(group, operation, exchange);
  }
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  const EvenSplit slices(size, group.size());
  for (const int peer : exchange.peers()) {
    exchange.send(peer, {src + slices[peer].offset, slices[peer].bytes});
  }
  const Block own = slices[group.rank()];
  if (own.bytes > 0) {
    receive_and_reduce(group, exchange, {src + own.offset, own.bytes}, dst + own.offset, operation);
  }
  for (const int peer : exchange.peers()) {
    exchange.send(peer, {dst + own.offset, own.bytes});
    exchange.recv(peer, {dst + slices[peer].offset, slices[peer].bytes});
  }
}

}  // namespace

void all_reduce(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return all_reduce_one_host(group, operation);
  const std::size_t size = bytes(operation);
  const EvenSplit slices(size, group.size());
  std::vector<Block> blocks;
  for (int rank = 0; rank < group.size(); ++rank) blocks.push_back(slices[rank]);
  const Block own = slices[group.rank()];
  std::byte* dst = destination(operation);
  Exchange exchange(group.team, operation);
  const Algorithm algorithm = group.tuning.choose(operation, size);
  compare(group, algorithm, exchange);
  switch (algorithm) {
    case Algorithm::flat:
      flat(group, operation, exchange);
      break;
    case Algorithm::ring:
      ring_reduce_scatter(group, blocks, dst + own.offset, operation, exchange);
      ring_all_gather(group, blocks, dst, exchange);
      break;
    case Algorithm::doubling:
      doubling_all_reduce(group, operation, exchange);
      break;
    case Algorithm::halving:
      halving_all_reduce(group, operation, exchange);
      break;
    case Algorithm::chain:  // chain is never chosen for all_reduce
    case Algorithm::two_level:
      two_level_reduce_scatter(group, operation, {size, size}, blocks, dst + own.offset, exchange);
      two_level_all_gather(group, operation, {size, size}, blocks,
                           {Offer::From::dst, own.offset, own.offset, own.bytes, everybody},
                           exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_collectives
