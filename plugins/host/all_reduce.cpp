// all_reduce: dst[i] = op over ranks of src[i].
//
// Vocabulary. Slice: the part of the data that one rank reduces; whole cache lines, the last ones
// may be shorter or empty. S: bytes of the data.
// Steps, one host. Small data: every rank reduces everything. Else every rank reads its slice of
// every src and writes the sum to every dst in the same pass; where the dsts are out of reach, to
// its own, and the slices are gathered (sdk/sum.cpp, sdk/move.cpp).
// Steps, several hosts. two_level, ring: a reduce_scatter over the slices into dst, then an
// all_gather of them. Medium data on many hosts: halving between the ranks of one place on each
// host (sdk/halving.cpp). Small data: doubling (sdk/doubling.cpp), or, of 16-bit types, flat: every
// rank sends everything to every other one and reduces by itself, one trip instead of two.
// In place this is safe: another rank's slice of dst arrives after its owner has all contributions
// to it, so what src held there has been read; and the own slice of src goes to nobody.
// Bytes between H hosts, each way per host. two_level, halving on a power of two of hosts, and ring
// with one rank per host: 2 (H - 1) / H S, the least possible.
// Order of the sum: as in reduce_scatter; doubling and halving say theirs.
#include <algorithm>

#include "host/collectives.hpp"
#include "collectives/doubling.hpp"
#include "collectives/halving.hpp"

namespace atoll_sdk::host {
namespace {

// Where one trip of everything between hosts beats two trips of slices.
constexpr std::size_t small_flat_bytes = 4 * 1024;
constexpr std::size_t small_total = 64 * 1024;

// Slices over all ranks, whole cache lines.
struct Slices {
  Slices(std::size_t size_, int ranks) : size(size_) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t line = atoll_sdk::cache_line;
    each = ((size + n - 1) / n + line - 1) / line * line;
  }
  std::size_t begin(int rank) const { return std::min(block(rank, each), size); }
  std::size_t length(int rank) const { return begin(rank + 1) - begin(rank); }

  std::size_t size;
  std::size_t each;
};

void one_host(Comm& comm, const atoll_operation& operation) {
  auto& group = comm.group();
  const std::size_t size = bytes(operation);
  std::byte* dst = destination(operation);
  const atoll_sdk::Extents extents{size, size};
  if (size <= atoll_sdk::small_bytes || comm.size() == 1) {
    group.slices.push_back({0, size, atoll_sdk::everybody, dst});
    atoll_sdk::sum(group, operation, extents, {.op = operation.op});
    return;
  }
  const Slices slices(size, comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    group.slices.push_back(
        {slices.begin(rank), slices.length(rank), rank, dst + slices.begin(rank)});
  }
  const bool pushed = atoll_sdk::sum(group, operation, extents,
                                     {.op = operation.op, .push = atoll_sdk::Sum::Push::all});
  if (pushed) return;
  for (int rank = 0; rank < comm.size(); ++rank) {
    group.offers[static_cast<std::size_t>(rank)].push_back(
        {atoll_sdk::Offer::From::dst, slices.begin(rank), slices.begin(rank), slices.length(rank),
         atoll_sdk::everybody});
  }
  atoll_sdk::move(group, operation, extents);
}

void flat_small(Comm& comm, const atoll_operation& operation, atoll_sdk::Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t line = atoll_sdk::cache_line;
  const std::size_t stride = (size + line - 1) / line * line;
  const auto scratch = comm.group().scratch(stride * ranks);
  std::vector<const void*> parts(ranks, src);
  std::vector<double> factors(ranks, atoll_sdk::factor_of(operation));
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    const auto part = scratch.subspan(block(peer, stride), size);
    exchange.send(peer, {src, size});
    exchange.recv(peer, part);
    parts[static_cast<std::size_t>(peer)] = part.data();
  }
  // The sends, too: in place, reducing overwrites what they read.
  exchange.run();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer != comm.rank()) factors[static_cast<std::size_t>(peer)] = exchange.factor(peer);
  }
  const bool scaled = std::ranges::any_of(factors, [](double f) { return f != 1.0; });
  comm.reduce(destination(operation), parts, scaled ? factors.data() : nullptr, operation.count,
              operation);
}

void flat(Comm& comm, const atoll_operation& operation, atoll_sdk::Exchange& exchange) {
  const std::size_t size = bytes(operation);
  if (size <= small_flat_bytes && size * static_cast<std::size_t>(comm.size()) <= small_total) {
    return flat_small(comm, operation, exchange);
  }
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  const Slices slices(size, comm.size());
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
}

}  // namespace

void all_reduce(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return one_host(comm, operation);
  const std::size_t size = bytes(operation);
  const Slices slices(size, comm.size());
  std::vector<atoll_sdk::Block> blocks;
  for (int rank = 0; rank < comm.size(); ++rank) {
    blocks.push_back({slices.begin(rank), slices.length(rank)});
  }
  const auto& own = blocks[static_cast<std::size_t>(comm.rank())];
  std::byte* dst = destination(operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  switch (comm.tuning().choose(operation, size)) {
    case Algorithm::flat:
      exchange.greet_all();
      flat(comm, operation, exchange);
      break;
    case Algorithm::ring:
      exchange.greet_all();
      ring_reduce_scatter(comm, blocks, dst + own.offset, operation, exchange);
      ring_all_gather(comm, blocks, dst, exchange);
      break;
    case Algorithm::doubling:
      greet_twins(comm, exchange);
      atoll_sdk::doubling_all_reduce(comm.group(), operation, exchange);
      break;
    case Algorithm::halving:
      greet_twins(comm, exchange);
      atoll_sdk::halving_all_reduce(comm.group(), operation, exchange);
      break;
    case Algorithm::chain:  // of broadcast only
    case Algorithm::two_level:
      greet_twins(comm, exchange);
      atoll_sdk::two_level_reduce_scatter(comm.group(), operation, {size, size}, blocks,
                                          dst + own.offset, exchange);
      atoll_sdk::two_level_all_gather(
          comm.group(), operation, {size, size}, blocks,
          {atoll_sdk::Offer::From::dst, own.offset, own.offset, own.bytes, atoll_sdk::everybody},
          exchange);
      break;
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
