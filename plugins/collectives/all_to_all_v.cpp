// all_to_all_v: every rank sends counts[r] elements to rank r and receives recv_counts[r] elements
// from rank r; the blocks of src and of dst are packed in rank order.
//
// Every pair of ranks exchanges its two blocks, all pairs at the same time. Ranks of one host also
// exchange messages: a rank does not know the counts of other ranks, so it cannot find its block in
// their src. A signature with the number of elements precedes each block, so a sender and a
// receiver with different counts report a mismatch. Each rank sends and receives exactly its data,
// which is the minimum.
#include "collectives/collectives.hpp"

namespace atoll_collectives {

void all_to_all_v(Group& group, const atoll_operation& operation) {
  const std::size_t element = dtype_size(operation.dtype);
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto own = static_cast<std::size_t>(group.rank());
  std::vector<const std::byte*> from(ranks);
  std::vector<std::byte*> to(ranks);
  std::size_t sent = 0, received = 0;  // offsets in bytes
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    from[peer] = source(operation) + sent;
    to[peer] = destination(operation) + received;
    sent += operation.counts[peer] * element;
    received += operation.recv_counts[peer] * element;
  }
  Signature signature = make_signature(operation, group.size(), group.team.collectives);
  Exchange exchange(group.team, operation);
  for (const int rank : exchange.peers()) {
    const auto peer = static_cast<std::size_t>(rank);
    signature.count = operation.counts[peer];
    exchange.send_signature(rank, signature);
    exchange.send(rank, {from[peer], operation.counts[peer] * element});
    signature.count = operation.recv_counts[peer];
    exchange.expect_signature(rank, signature);
    exchange.recv(rank, {to[peer], operation.recv_counts[peer] * element});
  }
  exchange.start();
  copy(to[own], from[own], operation.counts[own] * element);
  exchange.run();
}

}  // namespace atoll_collectives
