// Two-level collectives: they combine data within each host first, so that as few bytes as possible
// cross between hosts. For a tensor of S bytes, each of H hosts sends and receives (H - 1) / H S
// bytes; a flat exchange with h ranks per host sends h times as many. A reduce moves S bytes per
// host.
//
// Data is processed in pieces, so that the network and shared memory are busy at the same time.
// Callers must have queued the comparison of call signatures with this rank's counterparts
// (Layout::counterparts).
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/block.hpp"
#include "collectives/group.hpp"

namespace atoll_collectives {

// Fills dst with the blocks of all ranks; blocks may differ in size. `own` is the location of this
// rank's block, in src or in dst. The owner of a block sends the block once to each other host, to
// its counterpart there, and the other ranks of that host copy the block from the counterpart.
// `exchange` may have pending sends on return.
void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange);

// Reduces each block over all ranks and writes the block that this rank owns to `out`. On each host
// the counterpart of a block's owner sums the contributions of its host and sends the result,
// rounded to the dtype, to the owner. The owner reduces the results of all hosts in host order. The
// order of the sum is an adjacent-pair tree over the ranks of each host, followed by such a tree
// over the hosts.
void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out, Exchange& exchange);

// Reduces the whole tensor into the root's dst, in the same order as two_level_reduce_scatter().
// The algorithm is a reduce_scatter in which the owner of a block sends each piece to the root as
// soon as the piece is reduced. On two hosts, the ranks of the root's host own the blocks and pass
// them to the root through shared memory; S bytes enter the root's host and none leave it. On more
// hosts, the ranks of all other hosts own the blocks; at most S bytes enter and leave every host,
// whereas a root that received all contributions itself would receive (H - 1) S. The root must have
// queued the comparison of call signatures with every rank.
void two_level_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
