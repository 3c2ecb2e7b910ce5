// all_reduce of small data over several hosts in log2 H messages between hosts.
#pragma once

#include "collectives/group.hpp"

namespace atoll_collectives {

// A leader is a rank that exchanges data for its host. Steps:
// 1. Each host sums its ranks' data into the dst of its leaders.
// 2. Leaders exchange all data with their counterparts on the hosts at distance 1, 2, 4, ... and
//    add it. host_pairs.hpp describes hosts that are not a power of two.
// 3. The other ranks copy the result from the leader.
//
// Up to `small_bytes`, every rank sums, and the smallest host's number of ranks lead on each host,
// each for itself: ranks of equally large hosts then need no step 3. For larger data the first rank
// of a host is its only leader.
//
// Order of the sum: over the ranks of a host, then adjacent pairs of hosts. 16-bit types are
// rounded at every exchange, so other algorithms suit them better.
// Bytes between hosts, out of and into each host with h leaders: h S log2 H. A flat exchange of h
// ranks per host sends h h (H - 1) S in one message.
// The caller has compared signatures with the counterparts.
void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
