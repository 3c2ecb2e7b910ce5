// reduce: dst[i] of the root = op over ranks of src[i].
//
// Steps, one host. Every rank sums a slice and writes it into the root's dst; where that is out of
// reach, or the data is small, the root sums all (sdk/sum.cpp).
// Steps, several hosts. Every rank sends everything to the root, which reduces chunk by chunk.
// Bytes on the wire. (N - 1) S into the root.
// Order of the sum: adjacent-pair tree over the ranks.
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

}  // namespace

void reduce(Comm& comm, const atoll_operation& operation) {
  if (comm.group().one_host()) return one_host(comm, operation);
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  atoll_sdk::Exchange exchange(comm.team(), operation);
  if (comm.rank() == root) {
    exchange.greet_all();
    exchange.start();
    receive_and_reduce(comm, exchange, {source(operation), size}, destination(operation),
                       operation);
  } else {
    exchange.greet(root);
    exchange.send(root, {source(operation), size});
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
