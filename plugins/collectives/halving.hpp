// all_reduce of medium data over many hosts in 2 log2 H messages between hosts, to one host at a
// time, with halves, quarters, ... of the data.
#pragma once

#include "collectives/group.hpp"

namespace atoll_collectives {

// A column is a set of counterparts, one rank per host. There are as many columns as the smallest
// host has ranks, and each reduces its share of the data. Steps:
// 1. On each host the rank of a column sums the host's contributions to the share into its dst.
// 2. Within a column, hosts at distance 1, 2, 4, ... give each other half of their data and add the
//    other half, until each has the sum of 1 / H of the share. Then they return finished halves in
//    the opposite order. host_pairs.hpp describes hosts that are not a power of two.
// 3. The ranks of a host copy the shares from each other.
//
// Order of the sum: over the ranks of a host, then adjacent pairs of hosts. Data that crosses is
// rounded to the dtype: 16-bit types 1 + log2 H times, and once more for paired hosts; two_level
// rounds them twice.
// Bytes between hosts, out of and into each host: 2 (H - 1) / H S as in two_level, but in 2 log2 H
// messages per rank instead of 2 (H - 1); 2 S more for paired hosts.
// The caller has compared signatures with the counterparts.
void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
