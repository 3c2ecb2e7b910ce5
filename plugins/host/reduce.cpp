// reduce: dst[i] of the root = op over ranks of src[i].
//
// Steps, one host. Every rank sums a slice and writes it into the root's dst; where that is out of
// reach, or the data is small, the root sums all (sdk/sum.cpp).
// Steps, several hosts. flat: every rank sends everything to the root, which reduces chunk by
// chunk. two_level: a reduce_scatter whose owners pass what is done on to the root
// (sdk/two_level.cpp).
// Bytes on the wire. flat: (N - h) S into the root's host of h ranks. two_level: S.
// Order of the sum. flat: adjacent-pair tree over the ranks. two_level: as in reduce_scatter.
#include <algorithm>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

void one_host(Comm& comm, const atoll_operation& operation) {
  auto& group = comm.group();
  const std::size_t size = bytes(operation);
  const bool root = comm.rank() == operation.peer;
  std::byte* dst = destination(operation);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t line = atoll_sdk::cache_line;
  const std::size_t even = (size + ranks - 1) / ranks;
  const std::size_t each = size <= atoll_sdk::small_bytes ? size : (even + line - 1) / line * line;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int reducer = size <= atoll_sdk::small_bytes ? operation.peer : rank;
    const std::size_t begin = std::min(block(rank, each), size);
    const std::size_t length = std::min(each, size - begin);
    group.slices.push_back({begin, length, reducer, root ? dst + begin : nullptr});
  }
  atoll_sdk::sum(group, operation, {size, root ? size : 0},
                 {.op = operation.op, .push = atoll_sdk::Sum::Push::root, .root = operation.peer});
}

void flat(Comm& comm, const atoll_operation& operation, atoll_sdk::Exchange& exchange) {
  const std::size_t size = bytes(operation);
  if (comm.rank() == operation.peer) {
    exchange.start();
    receive_and_reduce(comm, exchange, {source(operation), size}, destination(operation),
                       operation);
  } else {
    exchange.send(operation.peer, {source(operation), size});
  }
}

// The same in every algorithm, so that ranks which disagree about root or count find out.
void greet_root_and_twins(Comm& comm, int root, atoll_sdk::Exchange& exchange) {
  if (comm.rank() == root) return exchange.greet_all();
  const auto known = atoll_sdk::twins(comm.group().layout, comm.rank());
  for (const int rank : known) exchange.greet(rank);
  if (std::ranges::find(known, root) == known.end()) exchange.greet(root);
}

}  // namespace

void reduce(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return one_host(comm, operation);
  atoll_sdk::Exchange exchange(comm.team(), operation);
  if (comm.tuning().choose(operation, bytes(operation)) == Algorithm::two_level) {
    greet_root_and_twins(comm, operation.peer, exchange);
    atoll_sdk::two_level_reduce(comm.group(), operation, exchange);
  } else {
    exchange.greet_all();
    flat(comm, operation, exchange);
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
