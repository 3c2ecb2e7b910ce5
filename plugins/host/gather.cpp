// gather: on the root, dst[r * n + i] = src of rank r [i].
//
// Steps, one host. The root copies every rank's block to its place (sdk/move.cpp).
// Steps, several hosts. Every rank sends its block to the root, all at the same time.
// Bytes on the wire. (N - 1) B into the root, which is the least possible.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void gather(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  const bool is_root = comm.rank() == root;
  if (comm.group().one_host()) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      comm.group().offers[static_cast<std::size_t>(rank)].push_back(
          {atoll_sdk::Offer::From::src, 0, block(rank, size), size, root});
    }
    const std::size_t whole = is_root ? block(comm.size(), size) : 0;
    return atoll_sdk::move(comm.group(), operation, {size, whole});
  }
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();  // ranks that take another one for the root find out, instead of waiting
  if (is_root) {
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer != root) exchange.recv(peer, {destination(operation) + block(peer, size), size});
    }
    exchange.start();
    copy(destination(operation) + block(root, size), source(operation), size);
  } else {
    exchange.send(root, {source(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
