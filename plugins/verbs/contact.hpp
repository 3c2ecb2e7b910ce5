// Contact: what a rank must know of another to connect queue pairs and to write to its mailbox. The
// ranks exchange it as text through the job's store, which only processes with the token can read.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

struct Contact {
  struct Rail {
    ibv_gid gid{};
    std::uint16_t lid = 0;
    int mtu = 0;  // an ibv_mtu
    std::uint32_t key = 0;
    std::vector<std::uint32_t> queue_pairs;  // their numbers
  };
  std::uint32_t first_packet = 0;  // sequence number of the first packet of every queue pair
  std::uint64_t mailbox = 0;       // address of the mailbox
  std::uint64_t ring_bytes = 0;
  std::vector<Rail> rails;

  Target target() const;
};

std::string encode(const Contact& contact);
// Throws Error(ATOLL_BAD_DATA) if `text` is not the result of encode().
Contact decode(const std::string& text);

}  // namespace atoll_verbs_backend
