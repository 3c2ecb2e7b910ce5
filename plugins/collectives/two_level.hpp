// Collectives over several hosts that send each byte between hosts only as often as necessary: for
// a tensor of S bytes, (H - 1) / H S into and out of each of H hosts, where a flat exchange of h
// ranks per host sends h times that; S for reduce.
//
// A piece is the part of the tensor that is handed from one level to the other at a time, so that
// the network and shared memory work at once. Callers have compared signatures with the
// counterparts (Layout::counterparts).
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/block.hpp"
#include "collectives/group.hpp"

namespace atoll_collectives {

// Fills dst with the blocks of all ranks; blocks may differ in size. `own` says where this rank's
// block is, in src or in dst. Every block crosses to each other host once, from its owner to the
// owner's counterpart, and the other ranks of that host copy it from there. `exchange` may have
// pending sends on return.
void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange);

// Reduces every rank's block over all ranks into `out`. On each host the owner's counterpart sums
// the host's contributions and sends the result, rounded to the dtype, to the owner, which adds the
// results of all hosts in host order. The sum is a tree over the ranks of each host, followed by a
// tree over the hosts.
void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out, Exchange& exchange);

// Reduces everything into the root's dst, with the same order of the sum: a reduce_scatter in which
// each owner passes a piece on to the root as soon as it is done. On two hosts the ranks of the
// root's host own the blocks and deliver them through shared memory: S bytes go into the root's
// host and none out of it. On more hosts the ranks of all other hosts own the blocks: S bytes go
// into and out of every host, where the root alone would receive (H - 1) S. The root has compared
// signatures with every rank.
void two_level_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
