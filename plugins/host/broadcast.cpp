// broadcast: data of the root on every rank.
//
// Idea. The root sends the whole to every other rank, all at the same time.
// Steps. 1. root and every other rank exchange signatures, both ways: ranks that disagree about the
//           root find out, instead of waiting for each other;
//        2. root: queue src for every peer, copy it to dst unless in place; others: queue dst;
//        3. run.
// Bytes on the wire. (N - 1) B out of the root, B into each other rank; a tree or scatter and
//   all_gather would spread what the root sends.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void broadcast(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  std::byte* dst = destination(operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  if (comm.rank() != root) {
    exchange.greet(root);
    exchange.recv(root, {dst, size});
    exchange.run();
    return;
  }
  const std::byte* src = source(operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer != root) exchange.send(peer, {src, size});
  }
  exchange.start();
  if (dst != nullptr) copy(dst, src, size);
  exchange.run();
}

}  // namespace atoll_sdk::host
