// all_reduce: dst[i] = op over ranks of src[i].
//
// Idea. Large: a reduce_scatter over N slices, then an all_gather of the reduced slices. Small:
// every rank sends everything to every other one and reduces by itself, one trip instead of two.
// Both add in rank order, so the result has the same bits on every rank and for every count.
// Vocabulary. Slice: the part of the data that one rank reduces; whole cache lines, the last ones
// may be shorter or empty. B: bytes of the data.
// Steps, large.
// 1. Queue slice p of src for every peer p.
// 2. Receive and reduce the own slice into dst, chunk by chunk.
// 3. Queue the reduced slice for every peer, and slice p of dst from every peer p; run.
// In place this is safe: slice p of dst arrives after its owner has all contributions to it, so
// what src held there has left; and the own slice of src goes to nobody.
// Bytes on the wire. Large: 2 (N - 1) / N B out of and into each rank, which is the least possible;
// small: (N - 1) B.
#include <algorithm>
#include <vector>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

// Where one trip of everything beats two trips of parts.
constexpr std::size_t small_bytes = 4 * 1024;
constexpr std::size_t small_total = 64 * 1024;

class Slices {
 public:
  Slices(std::size_t size, int ranks) : size_(size) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t even = size / n + (size % n != 0 ? 1 : 0);
    each_ = (even + cache_line - 1) / cache_line * cache_line;
  }
  std::size_t begin(int rank) const { return std::min(block(rank, each_), size_); }
  std::size_t length(int rank) const { return begin(rank + 1) - begin(rank); }

 private:
  std::size_t size_;
  std::size_t each_;
};

void all_reduce_small(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t stride = (size + cache_line - 1) / cache_line * cache_line;
  const auto scratch = comm.scratch(stride * ranks);
  std::vector<const void*> parts(ranks, src);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    const auto part = scratch.subspan(block(peer, stride), size);
    exchange.send(peer, {src, size});
    exchange.recv(peer, part);
    parts[static_cast<std::size_t>(peer)] = part.data();
  }
  // The sends, too: in place, reducing overwrites what they read.
  exchange.run();
  comm.reduce(destination(operation), parts, operation.count, operation);
}

}  // namespace

void all_reduce(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  if (size <= small_bytes && size * static_cast<std::size_t>(comm.size()) <= small_total) {
    return all_reduce_small(comm, operation);
  }
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  const Slices slices(size, comm.size());
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer != comm.rank()) exchange.send(peer, {src + slices.begin(peer), slices.length(peer)});
  }
  const std::size_t mine = slices.begin(comm.rank());
  const std::size_t length = slices.length(comm.rank());
  if (length > 0) receive_and_reduce(comm, exchange, {src + mine, length}, dst + mine, operation);
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    exchange.send(peer, {dst + mine, length});
    exchange.recv(peer, {dst + slices.begin(peer), slices.length(peer)});
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
