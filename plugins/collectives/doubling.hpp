// The doubling algorithm: all_reduce of small data over H hosts with log2 H messages between hosts.
#pragma once

#include "collectives/group.hpp"

namespace atoll_collectives {

// A leader is a rank that exchanges data with other hosts on behalf of its own host. Steps:
// 1. On each host, the data of its ranks is summed into the dst of each leader.
// 2. Each leader exchanges all data with its counterparts on the hosts at distance 1, 2, 4, ...,
//    and adds the data that it receives. host_pairs.hpp explains what happens if H is not a power
//    of two.
// 3. The remaining ranks of the host copy the result from the leader.
//
// Up to `small_bytes` of data, every rank computes the sum of its host, and each host has h
// leaders, where h is the number of ranks on the smallest host. If all hosts have h ranks, step 3
// is unnecessary. For larger data, the first rank of a host is its only leader.
//
// Order of the sum: first the ranks of each host, then adjacent pairs of hosts. 16-bit types are
// rounded at every exchange, so other algorithms suit them better. Bytes between hosts, for S bytes
// of data and h leaders per host: each host sends and receives h S log2 H bytes. A flat exchange
// between h ranks per host would send h h (H - 1) S bytes per host. The caller must have queued the
// comparison of call signatures with this rank's counterparts.
void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange);

}  // namespace atoll_collectives
