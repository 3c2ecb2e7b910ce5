// reduce_scatter: on each rank, dst[i] = op over all ranks of src[rank * n + i]. reduce_scatter_v:
// src holds n[r] elements for each rank r, one rank after the other, without gaps.
//
// A slice is the part of src that one rank reduces. A rank receives its slice from all peers in
// chunks and reduces each chunk before it receives the next, so that the scratch memory stays
// small.
//
// On one host every rank reads its slice of every rank's src and writes the result to its dst.
//
// Over several hosts:
//   two_level: each host sums its ranks' contributions to a slice before it sends them
//     (two_level.cpp).
//   ring: each slice passes through all ranks, and every rank adds its contribution (ring.cpp).
//   flat: each rank receives all contributions to its slice and reduces them in rank order.
//
// Bytes per host and direction, for a tensor of S bytes on H hosts and N ranks: two_level (H - 1) /
// H S; ring (N - 1) / N S if the ranks of each host are consecutive. With h ranks per host, flat
// sends h times the bytes of two_level, but needs only one message per pair of ranks, so it suits
// small data.
//
// Order of the sum: on one host, and with flat, an adjacent-pair tree over the ranks. With
// two_level, an adjacent-pair tree over the ranks of each host, then an adjacent-pair tree over the
// hosts; the result is the same tree as with flat if every host has the same number of consecutive
// ranks and that number is a power of two. With ring, one rank after the other.
#include <algorithm>

#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

// Limits for the size of the chunks in which a rank receives data that it reduces. The chunks from
// all peers should stay in the caches between their arrival and their reduction.
constexpr std::size_t largest_chunk = 256 * 1024;
constexpr std::size_t smallest_chunk = 16 * 1024;
constexpr std::size_t scratch_budget = 4 * 1024 * 1024;

std::size_t chunk_bytes(int ranks) {
  const std::size_t fair =
      scratch_budget / static_cast<std::size_t>(ranks) / cache_line * cache_line;
  return std::clamp(fair, smallest_chunk, largest_chunk);
}

void reduce_scatter_one_host(Group& group, const atoll_operation& operation) {
  Extents extents{0, 0};
  for_each_block(group, operation, [&](int rank, const Block& block) {
    group.slices.push_back({block.offset, block.bytes, rank, destination(operation)});
    extents.src += block.bytes;
    if (rank == group.rank()) extents.dst = block.bytes;
  });
  sum(group, operation, extents, {.op = operation.op, .owners_write = Sum::Owners::in_dst});
}

}  // namespace

void reduce_contributions(Group& group, const Exchange& exchange,
                          std::span<const void* const> parts, std::byte* dst, std::uint64_t count,
                          const atoll_operation& operation) {
  group.factors.assign(parts.size(), operation.factor);
  for (const int peer : exchange.peers()) {
    group.factors[static_cast<std::size_t>(peer)] = exchange.factor(peer);
  }
  const bool scaled = std::ranges::any_of(group.factors, [](double f) { return f != 1.0; });
  void* to = dst;
  reduce_arrays(operation, operation.op,
                {.dsts = {&to, 1},
                 .parts = parts,
                 .factors = scaled ? group.factors.data() : nullptr,
                 .count = count});
}

void receive_and_reduce(Group& group, Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t element = dtype_size(operation.dtype);
  const std::size_t chunk = std::min(chunk_bytes(group.size()), own.size());
  const std::size_t stride = round_up_to_line(chunk);
  const auto scratch = group.scratch(stride * ranks);
  std::vector<const void*> parts(ranks);
  for (std::size_t at = 0; at < own.size(); at += chunk) {
    const std::size_t size = std::min(chunk, own.size() - at);
    parts[static_cast<std::size_t>(group.rank())] = own.data() + at;
    for (const int peer : exchange.peers()) {
      const auto part = scratch.subspan(block(peer, stride), size);
      exchange.recv(peer, part);
      parts[static_cast<std::size_t>(peer)] = part.data();
    }
    exchange.run_receives();
    reduce_contributions(group, exchange, parts, dst + at, size / element, operation);
  }
}

void reduce_scatter(Group& group, const atoll_operation& operation) {
  if (group.one_host()) return reduce_scatter_one_host(group, operation);
  const Partition partition(group, operation);
  const Block own = partition.own;
  Exchange exchange(group.team, operation);
  const Algorithm algorithm = group.tuning.choose(operation, partition.whole);
  compare(group, algorithm, exchange);
  switch (algorithm) {
    case Algorithm::flat:
      for (const int peer : exchange.peers()) {
        const auto& theirs = partition.blocks[static_cast<std::size_t>(peer)];
        exchange.send(peer, {source(operation) + theirs.offset, theirs.bytes});
      }
      receive_and_reduce(group, exchange, {source(operation) + own.offset, own.bytes},
                         destination(operation), operation);
      break;
    case Algorithm::ring:
      ring_reduce_scatter(group, partition.blocks, destination(operation), operation, exchange);
      break;
    case Algorithm::doubling:  // doubling, halving and chain are never chosen here
    case Algorithm::halving:
    case Algorithm::chain:
    case Algorithm::two_level:
      two_level_reduce_scatter(group, operation, {partition.whole, own.bytes}, partition.blocks,
                               destination(operation), exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_collectives
