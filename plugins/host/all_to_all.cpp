// all_to_all: dst[r * n + i] = src of rank r [rank * n + i].
//
// Idea. Direct exchange, all pairs at the same time.
// Vocabulary. Block: the bytes that one rank has for one other rank, B.
// Steps. 1. queue block p of src for, and block p of dst from, every peer p;
//        2. copy the own block;
//        3. run until all have arrived and all are sent.
// Bytes on the wire. (N - 1) B out of and into each rank, which is the least possible.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void all_to_all(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
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
