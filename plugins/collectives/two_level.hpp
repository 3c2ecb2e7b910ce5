// Collectives over several hosts that send each byte across a link between hosts only as often as
// it must: (H - 1) / H of the data S into and out of each of H hosts, where a flat exchange of h
// ranks a host sends h times that; for reduce S.
//
// Vocabulary. Twin: the rank of another host that deals with this one (Layout::twin). Block: what
// one rank has (all_gather) or wants (reduce_scatter) of the whole tensor; blocks may differ in
// size. Piece: what is passed from one level to the other at a time, so that both work at once.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/group.hpp"

namespace atoll_sdk {

struct Block {
  std::size_t offset;  // bytes in the tensor
  std::size_t bytes;
};

// The ranks of other hosts that this rank exchanges data with.
std::vector<int> twins(const Layout& layout, int rank);

// Fills dst with the blocks of all ranks. `own`: where this rank's block lies, in src or in dst.
// Every block crosses to each other host once, from its owner to the twin there, which the other
// ranks of that host copy it from. `exchange` has greeted the twins; it may have sends left.
void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange);

// Reduces every rank's block over all ranks: on each host the twin of its owner sums the host's
// contributions and sends the result, rounded to the dtype, to the owner, which adds those of all
// hosts in their order. The sum is a tree over the ranks of each host, then one over the hosts.
void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out, Exchange& exchange);

// Reduces everything into the root's dst: a reduce_scatter, whose owners pass each piece on to the
// root as soon as it is done; the same sum. Of two hosts the ranks of the root's own blocks, which
// reach it through the board: S goes into the root's host, and nothing out of it. Of more hosts the
// ranks of all others do: S into and out of every host, where all at the root would be (H - 1) S.
// `exchange` has greeted the twins, and the root everybody.
void two_level_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_sdk
