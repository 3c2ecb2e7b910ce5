// reduce_scatter: dst[i] = op over ranks of src[rank * n + i]. reduce_scatter_v: the same with n[r]
// elements for rank r, packed.
//
// Vocabulary. Slice: the elements of src that one rank reduces, B bytes; all of them: S. Chunk:
// what is received from every peer before it is reduced; bounds the scratch memory.
// Steps, one host. Every rank reads its slice of every src and writes the sum (sdk/sum.cpp).
// Steps, several hosts.
//   two_level: each host sums its ranks' contributions to a slice before they cross
//     (sdk/two_level.cpp).
//   ring: each slice goes round, and every rank adds its contribution.
//   flat: each rank gets all contributions to its slice and reduces them itself, in rank order.
// Bytes between H hosts of h ranks, each way per host. two_level: (H - 1) / H S. ring, ranks of a
// host in a row: (N - 1) / N S. flat: h times two_level, in one trip: for small data.
// Order of the sum. One host and flat: adjacent-pair tree over the ranks. two_level: over the ranks
// of each host, then over the hosts, the same tree where hosts have equal powers of two of ranks in
// a row. ring: one rank after the other.
#include <algorithm>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

// A chunk from every peer should stay in the caches between its arrival and its reduction.
constexpr std::size_t largest_chunk = 256 * 1024;
constexpr std::size_t smallest_chunk = 16 * 1024;
constexpr std::size_t scratch_budget = 4 * 1024 * 1024;

std::size_t chunk_bytes(int ranks) {
  const std::size_t fair = scratch_budget / static_cast<std::size_t>(ranks) /
                           atoll_sdk::cache_line * atoll_sdk::cache_line;
  return std::clamp(fair, smallest_chunk, largest_chunk);
}

void one_host(Comm& comm, const atoll_operation& operation) {
  auto& group = comm.group();
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  const bool uneven = operation.kind == ATOLL_REDUCE_SCATTER_V;
  std::size_t offset = 0;
  std::size_t own = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::size_t size = (uneven ? operation.counts[rank] : operation.count) * element;
    group.slices.push_back({offset, size, rank, destination(operation)});
    offset += size;
    if (rank == comm.rank()) own = size;
  }
  atoll_sdk::sum(group, operation, {offset, own},
                 {.op = operation.op, .owners_write = atoll_sdk::Sum::Owners::in_dst});
}

}  // namespace

void receive_and_reduce(Comm& comm, atoll_sdk::Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  const std::size_t chunk = std::min(chunk_bytes(comm.size()), own.size());
  // Parts begin on cache lines whatever the count.
  const std::size_t line = atoll_sdk::cache_line;
  const std::size_t stride = (chunk + line - 1) / line * line;
  const auto scratch = comm.group().scratch(stride * ranks);
  std::vector<const void*> parts(ranks);
  std::vector<double> factors(ranks, atoll_sdk::factor_of(operation));
  for (std::size_t at = 0; at < own.size(); at += chunk) {
    const std::size_t size = std::min(chunk, own.size() - at);
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto part = scratch.subspan(block(rank, stride), size);
      if (rank != comm.rank()) exchange.recv(rank, part);
      parts[static_cast<std::size_t>(rank)] = rank == comm.rank() ? own.data() + at : part.data();
    }
    exchange.run_receives();
    for (int rank = 0; rank < comm.size(); ++rank) {
      if (rank != comm.rank()) factors[static_cast<std::size_t>(rank)] = exchange.factor(rank);
    }
    const bool scaled = std::ranges::any_of(factors, [](double f) { return f != 1.0; });
    comm.reduce(dst + at, parts, scaled ? factors.data() : nullptr, size / element, operation);
  }
}

void reduce_scatter(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return one_host(comm, operation);
  const auto blocks = blocks_of(comm, operation);
  const auto& own = blocks[static_cast<std::size_t>(comm.rank())];
  const std::size_t whole = blocks.back().offset + blocks.back().bytes;
  atoll_sdk::Exchange exchange(comm.team(), operation);
  switch (comm.tuning().choose(operation, whole)) {
    case Algorithm::flat:
      exchange.greet_all();
      for (int peer = 0; peer < comm.size(); ++peer) {
        const auto& theirs = blocks[static_cast<std::size_t>(peer)];
        if (peer != comm.rank())
          exchange.send(peer, {source(operation) + theirs.offset, theirs.bytes});
      }
      receive_and_reduce(comm, exchange, {source(operation) + own.offset, own.bytes},
                         destination(operation), operation);
      break;
    case Algorithm::ring:
      exchange.greet_all();
      ring_reduce_scatter(comm, blocks, destination(operation), operation, exchange);
      break;
    case Algorithm::doubling:  // of all_reduce only, as the next one; the third of broadcast
    case Algorithm::halving:
    case Algorithm::chain:
    case Algorithm::two_level:
      greet_twins(comm, exchange);
      atoll_sdk::two_level_reduce_scatter(comm.group(), operation, {whole, own.bytes}, blocks,
                                          destination(operation), exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
