// all_gather: dst[r * n + i] = src of rank r [i].
//
// Idea. Direct exchange: every rank sends its block to every other one, all pairs at the same time.
// Vocabulary. Block: the bytes of one rank's contribution, B.
// Steps.
// 1. Queue the own block for, and the matching block of dst from, every peer, nearest higher rank
//    first, so that no rank is everybody's first target.
// 2. Copy the own block to its place, unless it is there already.
// 3. Run until all have arrived and all are sent.
// Bytes on the wire. (N - 1) B out of and into each rank; between hosts of h ranks, h (N - h) B
// each way per host, h times what two levels would send.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void all_gather(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const std::byte* src = source(operation);
  std::byte* dst = destination(operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  for (int peer = 0; peer < comm.size() && size > 0; ++peer) {
    if (peer == comm.rank()) continue;
    exchange.send(peer, {src, size});
    exchange.recv(peer, {dst + block(peer, size), size});
  }
  exchange.start();
  if (size > 0) copy(dst + block(comm.rank(), size), src, size);
  exchange.run();
}

}  // namespace atoll_sdk::host
