// Rail: the queues of one port that all connections of a communicator share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/handles.hpp"
#include "verbs/hca.hpp"

namespace atoll_verbs_backend {

constexpr std::uint32_t queue_depth = 64;  // writes of a queue pair that may be on the way

struct Rail {
  std::shared_ptr<Hca> hca;
  CompletionChannel channel;
  CompletionQueue completions;
  ReceiveQueue receives;
  int receive_count = 0;  // number of writes of all peers that may arrive while nobody polls
  int queue_pairs = 0;    // number of queue pairs that report to `completions`
};

// Returns the number of data writes that each of the other ranks may have on the way without a
// confirmation, so that those of all ranks fit into the receives of every rail.
std::size_t credits_of(const std::vector<Rail>& rails, int remote_ranks);

// Creates the queues for communication with `remote_ranks` ranks of other hosts. Throws Error that
// names the limit if the device offers too little.
Rail open_rail(std::shared_ptr<Hca> hca, int remote_ranks);

// Makes room for the completions of more queue pairs, which must be created afterwards: a queue
// that overflows loses completions, and then all connections. Throws Error that names the limit if
// there is no room.
void add_queue_pairs(Rail& rail, int count);

// Posts one receive in place of one that has completed.
void post_receive(const Rail& rail);

}  // namespace atoll_verbs_backend
