// barrier: nobody leaves before all have come.
//
// Idea. Every rank tells every other one that it is here. A dissemination barrier needs only log2 N
//   messages per rank, but then a rank waits for ranks that are themselves waiting, and a timeout
//   could not name who is absent.
// Steps. Exchange signatures with every peer; run.
// Bytes on the wire. 48 (N - 1) out of and into each rank.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void barrier(Comm& comm, const atoll_operation& operation) {
  atoll_sdk::Exchange exchange(comm.team(), operation);
  exchange.greet_all();
  exchange.run();
}

}  // namespace atoll_sdk::host
