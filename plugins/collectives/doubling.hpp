// all_reduce of small data over several hosts: log2 H trips between hosts.
#pragma once

#include "collectives/group.hpp"

namespace atoll_sdk {

// The speakers of a host have the sum of its ranks' data in their dst; they exchange all of it with
// their twins on the hosts at distance 1, 2, 4, ... and add. With a number of hosts that is no
// power of two the first ones go in pairs: the odd one of a pair hands its data to the other, and
// gets the result from it. Of up to `small_bytes` every rank sums, and as many ranks speak, each
// for itself, as the smallest host has: then ranks of hosts of one size need not meet again. Of
// more the first rank of a host speaks, and the others copy the result. `exchange` has greeted the
// twins.
//
// Order of the sum: over the ranks of a host, then adjacent pairs of hosts. Where the dtype has 16
// bits it is rounded at every trip: use another algorithm.
// Bytes between hosts, with h speakers: h S log2 H out of and into each, where a flat exchange of h
// ranks a host sends h h (H - 1) S in one trip.
void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_sdk
