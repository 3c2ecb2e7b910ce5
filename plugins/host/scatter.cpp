// scatter: dst[i] = src of the root [rank * n + i].
//
// Steps, one host. Every rank copies its block out of the root's src (sdk/move.cpp).
// Steps, several hosts. The root sends every rank its block, all at the same time.
// Bytes on the wire. (N - 1) B out of the root, which is the least possible.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void scatter(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  const bool is_root = comm.rank() == root;
  if (comm.group().one_host()) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      comm.group().offers[static_cast<std::size_t>(root)].push_back(
          {atoll_sdk::Offer::From::src, block(rank, size), 0, size, rank});
    }
    const std::size_t whole = is_root ? block(comm.size(), size) : 0;
    return atoll_sdk::move(comm.group(), operation, {whole, size});
  }
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();  // ranks that take another one for the root find out, instead of waiting
  if (is_root) {
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer != root) exchange.send(peer, {source(operation) + block(peer, size), size});
    }
    exchange.start();
    copy(destination(operation), source(operation) + block(root, size), size);
  } else {
    exchange.recv(root, {destination(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
