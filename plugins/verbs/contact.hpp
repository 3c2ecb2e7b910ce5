// Contact: what a rank must know of another to connect queue pairs and to write to its mailbox. The
// ranks exchange it as text through the job's store, which only processes with the token can read.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

struct Contact {
  struct Rail {
    std::string port{};  // "mlx5_0:1"
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

// Returns, for each port of a rank, the index of the peer's port with which it is connected. Ports
// of one name are connected, because hosts are wired alike: a fabric of separate rails has no route
// between others. If the ranks have no name in common, port k is connected with port k. A port
// without a partner is not used. Both ranks get the same pairs.
std::vector<std::optional<std::size_t>> pair_rails(std::span<const std::string> own,
                                                   std::span<const Contact::Rail> peer);

}  // namespace atoll_verbs_backend
