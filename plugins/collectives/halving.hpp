// all_reduce of medium data over many hosts: 2 log2 H trips between hosts, to one host at a time,
// with halves, quarters, ... of the data.
#pragma once

#include "collectives/group.hpp"

namespace atoll_sdk {

// Vocabulary. Column: one rank of each host, those of the same place; there are as many as the
// smallest host has ranks. Each column reduces its share of the data.
// Steps.
// 1. On each host the rank of a column sums the host's contributions to its share into its dst.
// 2. In a column hosts at distance 1, 2, 4, ... give each other half of what they have, and add the
//    other half, until each has the sum of 1 / H of the share; then the way back, where they give
//    each other what is done. With a number of hosts that is no power of two the first ones go in
//    pairs, as in doubling.hpp.
// 3. The ranks of a host copy the shares from each other.
//
// Order of the sum: over the ranks of a host, then adjacent pairs of hosts, as in doubling.hpp.
// What crosses is rounded to the dtype: the 16-bit types 1 + log2 H times (once more where hosts go
// in pairs), where two_level rounds them twice.
// Bytes between hosts: 2 (H - 1) / H S out of and into each, as in two_level, in 2 log2 H messages
// a rank instead of 2 (H - 1); 2 S more for hosts that go in pairs.
// `exchange` has greeted the twins.
void halving_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_sdk
