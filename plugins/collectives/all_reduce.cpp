// all_reduce: dst[i] = op over all ranks of src[i].
//
// A slice is the part of the data that one rank reduces: whole cache lines; the last slices may be
// shorter or empty.
//
// On one host: for small data every rank reduces everything. Otherwise every rank reads its slice
// of every src and writes the sum to every dst in the same pass. If other ranks' dsts are not in
// registered windows, it writes to its own dst, and the slices are gathered.
//
// Over several hosts:
//   two_level, ring: a reduce_scatter of the slices into dst, then an all_gather of the slices.
//   halving: for medium data on many hosts (halving.cpp).
//   doubling: for small data (doubling.cpp).
//   flat: small 16-bit data in one message: every rank sends everything to every other rank and
//     reduces by itself. Larger data: reduce_scatter, then all_gather.
//
// In place is safe: another rank's slice of dst arrives after its owner has received all
// contributions to it, so this rank's src for that slice has been sent; and this rank's own slice
// of src is sent to nobody.
//
// Bytes between H hosts, per host and direction, for S bytes: 2 (H - 1) / H S, the least possible,
// with two_level, with halving on a power of two of hosts, and with ring at one rank per host.
//
// Order of the sum: as in reduce_scatter.cpp; doubling.hpp and halving.hpp define their own.
#include <algorithm>

#include "collectives/collectives.hpp"
#include "collectives/doubling.hpp"
#include "collectives/halving.hpp"
#include "collectives/two_level.hpp"

namespace atoll_collectives {
namespace {

// Up to these sizes, one message of everything is faster than two messages of slices.
constexpr std::size_t small_flat_bytes = 4 * 1024;
constexpr std::size_t small_total = 64 * 1024;

void one_host(Group& group, const atoll_operation& operation) {
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
  if (sum(group, operation, extents, {.op = operation.op, .push = Sum::Push::all})) return;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Block slice = slices[rank];
    group.offers[static_cast<std::size_t>(rank)].push_back(
        {Offer::From::dst, slice.offset, slice.offset, slice.bytes, everybody});
  }
  move(group, operation, extents);
}

void flat_small(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t stride = round_up_to_line(size);
  const auto scratch = group.scratch(stride * ranks);
  std::vector<const void*> parts(ranks, src);
  std::vector<double> factors(ranks, operation.factor);
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    const auto part = scratch.subspan(block(peer, stride), size);
    exchange.send(peer, {src, size});
    exchange.recv(peer, part);
    parts[static_cast<std::size_t>(peer)] = part.data();
  }
  // Also completes the sends: in place, the reduction overwrites what they read.
  exchange.run();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.rank()) factors[static_cast<std::size_t>(peer)] = exchange.factor(peer);
  }
  const bool scaled = std::ranges::any_of(factors, [](double f) { return f != 1.0; });
  group.reduce_parts(destination(operation), parts, scaled ? factors.data() : nullptr,
                     operation.count, operation);
}

void flat(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t size = bytes(operation);
  if (size <= small_flat_bytes && size * static_cast<std::size_t>(group.size()) <= small_total) {
    return flat_small(group, operation, exchange);
  }
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  const EvenSplit slices(size, group.size());
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    exchange.send(peer, {src + slices[peer].offset, slices[peer].bytes});
  }
  const Block own = slices[group.rank()];
  if (own.bytes > 0) {
    receive_and_reduce(group, exchange, {src + own.offset, own.bytes}, dst + own.offset, operation);
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    exchange.send(peer, {dst + own.offset, own.bytes});
    exchange.recv(peer, {dst + slices[peer].offset, slices[peer].bytes});
  }
}

}  // namespace

void all_reduce(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return one_host(group, operation);
  const std::size_t size = bytes(operation);
  const EvenSplit slices(size, group.size());
  std::vector<Block> blocks;
  for (int rank = 0; rank < group.size(); ++rank) blocks.push_back(slices[rank]);
  const Block own = slices[group.rank()];
  std::byte* dst = destination(operation);
  Exchange exchange(group.team, operation);
  switch (group.tuning.choose(operation, size)) {
    case Algorithm::flat:
      exchange.compare_with_all();
      flat(group, operation, exchange);
      break;
    case Algorithm::ring:
      exchange.compare_with_all();
      ring_reduce_scatter(group, blocks, dst + own.offset, operation, exchange);
      ring_all_gather(group, blocks, dst, exchange);
      break;
    case Algorithm::doubling:
      compare_with_counterparts(group, exchange);
      doubling_all_reduce(group, operation, exchange);
      break;
    case Algorithm::halving:
      compare_with_counterparts(group, exchange);
      halving_all_reduce(group, operation, exchange);
      break;
    case Algorithm::chain:  // never chosen for all_reduce
    case Algorithm::two_level:
      compare_with_counterparts(group, exchange);
      two_level_reduce_scatter(group, operation, {size, size}, blocks, dst + own.offset, exchange);
      two_level_all_gather(group, operation, {size, size}, blocks,
                           {Offer::From::dst, own.offset, own.offset, own.bytes, everybody},
                           exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_collectives
