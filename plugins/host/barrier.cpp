// barrier: nobody leaves before all have come.
//
// Idea. Every rank tells every other one that it is here. A dissemination barrier needs only log2 N
//   messages per rank, but then a rank waits for ranks that are themselves waiting, and a timeout
//   could not name who is absent.
// Steps, one host. A step on the board. Several hosts: exchange signatures with every peer.
// Bytes on the wire. 56 (N - 1) out of and into each rank.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void barrier(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return atoll_sdk::move(comm.group(), operation, {0, 0});
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  exchange.run();
}

}  // namespace atoll_sdk::host
