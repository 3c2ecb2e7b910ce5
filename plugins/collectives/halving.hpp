// The halving algorithm: all_reduce of medium-sized data over H hosts. Each rank exchanges 2 log2 H
// messages, one at a time, that carry halves, quarters, ... of its share of the data.
#pragma once

#include "collectives/group.hpp"

namespace atoll_collectives {

// A column consists of one rank per host; these ranks are counterparts. The number of columns is
// the number of ranks on the smallest host, and each column reduces an equal share of the data.
// Steps:
// 1. On each host, the rank that belongs to a column sums the contributions of the host's ranks to
//    the column's share, and writes the sum to its dst.
// 2. Within a column, the ranks of hosts at distance 1, 2, 4, ... exchange halves of their current
//    range: each rank sends one half and reduces the other. After log2 H exchanges each rank has
//    the complete sum of 1 / H of the share. Then the ranks exchange the finished halves in the
//    opposite order. host_pairs.hpp explains what happens if H is not a power of two.
// 3. The ranks of a host copy the finished shares from each other.
//
// Order of the sum: first the ranks of each host, then adjacent pairs of hosts. Data is rounded to
// the dtype before it is sent to another host. 16-bit types are therefore rounded 1 + log2 H times,
// and once more for paired hosts; two_level rounds them only twice. Bytes between hosts, for S
// bytes of data: each host sends and receives 2 (H - 1) / H S, as in two_level, but in 2 log2 H
// messages per rank instead of 2 (H - 1). Paired hosts move 2 S more. The caller must have queued
// the comparison of call signatures with this rank's counterparts.
void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
