// reduce_scatter: dst[i] = op over ranks of src[rank * n + i].
//
// Idea. Direct exchange: every rank gets all contributions to its slice from their owners and
// reduces them itself, so that nothing is rounded on the way and the order of the sum is the rank
// order, whatever the count.
// Vocabulary. Slice: the n elements of src that one rank reduces, B bytes. Chunk: what is received
// from every peer before it is reduced; bounds the scratch memory.
// Steps.
// 1. Queue slice p of src for every peer p.
// 2. For each chunk of the own slice: receive it from all peers, reduce the N parts in rank order
//    into dst; meanwhile the rings and sockets take in the next chunk, and the own sends go on
//    whenever this rank waits.
// 3. Run until the own sends are done.
// Bytes on the wire. (N - 1) B out of and into each rank, which is the least possible.
#include <algorithm>
#include <vector>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

// A chunk from every peer should stay in the caches between its arrival and its reduction.
constexpr std::size_t largest_chunk = 256 * 1024;
constexpr std::size_t smallest_chunk = 16 * 1024;
constexpr std::size_t scratch_budget = 4 * 1024 * 1024;

std::size_t chunk_bytes(int ranks) {
  const std::size_t fair =
      scratch_budget / static_cast<std::size_t>(ranks) / cache_line * cache_line;
  return std::clamp(fair, smallest_chunk, largest_chunk);
}

}  // namespace

void receive_and_reduce(Comm& comm, atoll_sdk::Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  const std::size_t chunk = std::min(chunk_bytes(comm.size()), own.size());
  // Parts begin on cache lines whatever the count.
  const std::size_t stride = (chunk + cache_line - 1) / cache_line * cache_line;
  const auto scratch = comm.scratch(stride * ranks);
  std::vector<const void*> parts(ranks);
  for (std::size_t at = 0; at < own.size(); at += chunk) {
    const std::size_t size = std::min(chunk, own.size() - at);
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto part = scratch.subspan(block(rank, stride), size);
      if (rank != comm.rank()) exchange.recv(rank, part);
      parts[static_cast<std::size_t>(rank)] = rank == comm.rank() ? own.data() + at : part.data();
    }
    exchange.run_receives();
    comm.reduce(dst + at, parts, size / element, operation);
  }
}

void reduce_scatter(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size() && size > 0; ++peer) {
    if (peer != comm.rank()) exchange.send(peer, {src + block(peer, size), size});
  }
  if (size > 0) {
    receive_and_reduce(comm, exchange, {src + block(comm.rank(), size), size},
                       destination(operation), operation);
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
