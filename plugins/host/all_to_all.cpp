// all_to_all: dst[r * n + i] = src of rank r [rank * n + i].
//
// Vocabulary. Block: the bytes that one rank has for one other rank, B.
// Steps, one host. Every rank copies its blocks out of every src (sdk/move.cpp).
// Steps, several hosts. Every pair exchanges its blocks, all pairs at the same time.
// Bytes on the wire. (N - 1) B out of and into each rank, which is the least possible.
#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

void one_host(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  for (int rank = 0; rank < comm.size(); ++rank) {
    auto& offers = comm.group().offers[static_cast<std::size_t>(rank)];
    // Each begins with another taker, so that all take at the same time.
    for (int step = 0; step < comm.size(); ++step) {
      const int taker = (rank + step) % comm.size();
      offers.push_back(
          {atoll_sdk::Offer::From::src, block(taker, size), block(rank, size), size, taker});
    }
  }
  const std::size_t whole = block(comm.size(), size);
  atoll_sdk::move(comm.group(), operation, {whole, whole});
}

}  // namespace

void all_to_all(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  if (comm.group().one_host()) return one_host(comm, operation);
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size() && size > 0; ++peer) {
    if (peer == comm.rank()) continue;
    exchange.send(peer, {src + block(peer, size), size});
    exchange.recv(peer, {dst + block(peer, size), size});
  }
  exchange.start();
  const std::size_t own = block(comm.rank(), size);
  if (size > 0) copy(dst + own, src + own, size);
  exchange.run();
}

}  // namespace atoll_sdk::host
