// all_reduce of small data over several hosts: one speaker per host, log2 H trips between hosts.
#pragma once

#include <vector>

#include "sdk/group.hpp"

namespace atoll_sdk {

// The ranks that speak to each other: the first of each host.
std::vector<int> speakers(const Layout& layout);

// Each host sums its ranks' data into the speaker's dst; speakers exchange all they have with one at
// distance 1, 2, 4, ... and add; the ranks of a host copy the result. With a number of hosts that is
// no power of two the first ones go in pairs: the odd one of a pair hands its data to the other,
// and gets the result from it. `exchange` has greeted the other speakers.
//
// Order of the sum: over the ranks of a host, then adjacent pairs of hosts. Where the dtype has 16
// bits it is rounded at every trip: use another algorithm.
// Bytes between hosts: S log2 H out of and into each, where a flat exchange of h ranks a host sends
// h h (H - 1) S in one trip.
void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_sdk
