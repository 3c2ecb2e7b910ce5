// Declares the collectives on CPU memory. Each is implemented in a file of its name, and runs over
// any Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/block.hpp"
#include "collectives/exchange.hpp"
#include "collectives/group.hpp"

namespace atoll_collectives {

// The functions below perform one collective each, whose arguments the C table has checked.
// After an exception the group must not be used again.
void all_gather(Group& group,
                const atoll_operation& operation);  // performs all_gather and all_gather_v
void reduce_scatter(
    Group& group,
    const atoll_operation& operation);  // performs reduce_scatter and reduce_scatter_v
void all_reduce(Group& group, const atoll_operation& operation);
void reduce(Group& group, const atoll_operation& operation);
void broadcast(Group& group, const atoll_operation& operation);
void gather(Group& group, const atoll_operation& operation);  // performs gather and gather_v
void scatter(Group& group, const atoll_operation& operation);
void all_to_all(Group& group, const atoll_operation& operation);
void all_to_all_v(Group& group, const atoll_operation& operation);
void barrier(Group& group, const atoll_operation& operation);
void send_recv(Group& group, std::span<atoll_operation* const> messages);

// The receiving half of a flat reduce_scatter, which all_reduce and reduce also use. Receives every
// peer's contribution to the range `own`, chunk by chunk, and reduces the contributions together
// with `own` into `dst`, in rank order. `dst` may equal `own`.
void receive_and_reduce(Group& group, Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation);

// Reduces `parts`, the contributions of all ranks in rank order, into `dst`, each scaled by the
// factor of its rank. The signatures of all ranks must have arrived. `dst` may be one of the parts.
void reduce_contributions(Group& group, const Exchange& exchange,
                          std::span<const void* const> parts, std::byte* dst, std::uint64_t count,
                          const atoll_operation& operation);

// The all_gather of the ring algorithm. On entry, `dst` must already hold this rank's own block at
// the block's offset; on return, `dst` holds the blocks of all ranks.
void ring_all_gather(Group& group, const std::vector<Block>& blocks, std::byte* dst,
                     Exchange& exchange);
// The reduce_scatter of the ring algorithm. Writes the reduced block of this rank to `out`.
void ring_reduce_scatter(Group& group, const std::vector<Block>& blocks, std::byte* out,
                         const atoll_operation& operation, Exchange& exchange);

// Before a call of a two-level algorithm, doubling or halving, the caller must have queued a
// comparison of call signatures, as compare() does, with this rank's counterparts: the ranks of
// other hosts with which this rank exchanges data.

// Fills dst with the blocks of all ranks; blocks may differ in size. `own` is the location of this
// rank's block, in src or in dst. On each other host, one rank (the owner's counterpart) receives
// the block once from its owner, and the other ranks of that host copy the block from the
// counterpart. `exchange` may have pending sends on return.
void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange);

// Reduces each block over all ranks and writes the block that this rank owns to `out`. On each host
// one rank, the counterpart of a block's owner, sums the contributions of its host and sends the
// result, rounded to the dtype, to the owner. The owner reduces the results of all hosts in host
// order. The order of the sum is an adjacent-pair tree over the ranks of each host, followed by
// such a tree over the hosts.
void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out, Exchange& exchange);

// Returns how many buffers of one piece each a rank needs at most in scratch memory for each piece
// in flight of a two_level_reduce_scatter(). All ranks derive the size of pieces from this number.
std::size_t two_level_slots(const Layout& layout);

// Reduces the whole tensor into the root's dst, in the same order as two_level_reduce_scatter().
// The algorithm is a reduce_scatter in which the owner of a block sends each piece to the root as
// soon as the piece is reduced. On two hosts, the ranks of the root's host own the blocks and pass
// them to the root through shared memory; S bytes enter the root's host and none leave it. On more
// hosts, the ranks of all other hosts own the blocks; at most S bytes enter and leave every host,
// whereas a root that received all contributions itself would receive (H - 1) S. The root must have
// queued the comparison of call signatures with every rank.
void two_level_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

// Both functions perform a whole all_reduce over several hosts. doubling.cpp and halving.cpp
// describe the steps.
void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);
void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

// Queues a comparison of call signatures: with all ranks for flat and ring, otherwise with this
// rank's counterparts, which are the ranks of other hosts with which the two-level algorithms
// exchange data.
inline void compare(Group& group, Algorithm algorithm, Exchange& exchange) {
  if (algorithm == Algorithm::flat || algorithm == Algorithm::ring) {
    return exchange.compare_with_all();
  }
  for (const int rank : group.layout.counterparts(group.rank())) exchange.compare_with(rank);
}

inline const std::byte* source(const atoll_operation& operation) {
  return static_cast<const std::byte*>(operation.src);
}
inline std::byte* destination(const atoll_operation& operation) {
  return static_cast<std::byte*>(operation.dst);
}
inline std::size_t bytes(const atoll_operation& operation) {
  return operation.count * dtype_size(operation.dtype);
}
// Returns the byte offset of a rank's block in a buffer that holds one block of `block_bytes` per
// rank.
inline std::size_t block(int rank, std::size_t block_bytes) {
  return static_cast<std::size_t>(rank) * block_bytes;
}

// Calls body(rank, Block) for each rank's block of an all_gather, reduce_scatter or gather, or of
// their _v forms, where block sizes differ.
template <class Body>
void for_each_block(const Group& group, const atoll_operation& operation, const Body& body) {
  const std::size_t element = dtype_size(operation.dtype);
  const bool uneven = is_uneven(operation.kind);
  std::size_t offset = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::size_t size = (uneven ? operation.counts[rank] : operation.count) * element;
    body(rank, Block{offset, size});
    offset += size;
  }
}

// Describes how the whole tensor of such an operation is divided into one block per rank.
struct Partition {
  Partition(const Group& group, const atoll_operation& operation) {
    for_each_block(group, operation, [&](int, const Block& one) { blocks.push_back(one); });
    own = blocks[static_cast<std::size_t>(group.rank())];
    whole = blocks.back().offset + blocks.back().bytes;
  }
  std::vector<Block> blocks;
  Block own{};
  std::size_t whole = 0;
};

}  // namespace atoll_collectives
