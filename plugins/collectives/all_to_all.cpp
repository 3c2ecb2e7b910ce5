// all_to_all: block r of a rank's dst is a copy of that rank's block in the src of rank r; in
// formulas, dst[r * n + i] = src[rank * n + i] of rank r.
//
// On one host every rank copies its blocks from the src of every rank. Over several hosts every
// pair of ranks exchanges blocks, all pairs at the same time. With blocks of B bytes, each of N
// ranks sends and receives (N - 1) B bytes, which is the minimum.
#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

void all_to_all_one_host(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  for (int rank = 0; rank < group.size(); ++rank) {
    // Each rank offers its blocks to a different receiver first, so that all ranks copy at the same
    // time.
    for (int step = 0; step < group.size(); ++step) {
      const int receiver = (rank + step) % group.size();
      group.offer(rank,
                  {Offer::From::src, block(receiver, size), block(rank, size), size, receiver});
    }
  }
  const std::size_t whole = block(group.size(), size);
  move(group, operation, {whole, whole});
}

}  // namespace

void all_to_all(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  if (group.one_host()) return all_to_all_one_host(group, operation);
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  Exchange exchange(group.team, operation);
  exchange.compare_with_all();
  for (const int peer : exchange.peers()) {
    exchange.send(peer, {src + block(peer, size), size});
    exchange.recv(peer, {dst + block(peer, size), size});
  }
  exchange.start();
  const std::size_t own = block(group.rank(), size);
  copy(dst + own, src + own, size);
  exchange.run();
}

}  // namespace atoll_collectives
