// Reliable connected queue pairs.
#pragma once

#include <cstdint>

#include "verbs/contact.hpp"
#include "verbs/handles.hpp"
#include "verbs/hca.hpp"
#include "verbs/settings.hpp"

namespace atoll_verbs_backend {

// The queue pair of the other rank.
struct PeerQueue {
  const Contact::Rail& rail;
  std::uint32_t number;        // number of the queue pair
  std::uint32_t first_packet;  // sequence number of the first packet that the queue pair sends
};

// Returns a sequence number for the first packet of a queue pair.
std::uint32_t random_packet();

// Creates a queue pair, which peers may write to, for `depth` writes in flight. If the adapter
// offers less inline data than wanted, there is none.
QueuePair create_queue_pair(const Hca& hca, ibv_cq* completions, ibv_srq* receives,
                            std::uint32_t depth, std::uint32_t inline_wanted);

// Maximum bytes of a write whose data the queue copies.
std::uint32_t inline_bytes_of(ibv_qp* pair);

// Connects a queue pair with that of the other rank. Throws Error if the adapter refuses the
// address or the two ports share no partition.
void connect_queue_pair(ibv_qp* pair, const Hca& hca, const Settings& settings,
                        const PeerQueue& peer, std::uint32_t first_packet);

}  // namespace atoll_verbs_backend
