// Contact: what a rank must know of another to connect queue pairs and to write to its mailbox. The
// ranks exchange it as text through the job's store, which only processes with the token can read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs/address.hpp"
#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

struct Contact {
  struct Rail {
    std::string port{};  // name of the port, such as "mlx5_0:1"
    Address address{};
    std::uint16_t lid = 0;
    std::uint16_t partition = 0;  // key of the InfiniBand partition
    int mtu = 0;                  // MTU of the port, a value of enum ibv_mtu
    std::uint32_t key = 0;
    std::vector<std::uint32_t> queue_pairs;  // numbers of the queue pairs
  };
  std::uint32_t first_packet = 0;  // sequence number of the first packet of every queue pair
  std::uint64_t mailbox = 0;       // address of this rank's mailbox
  std::uint64_t ring_bytes = 0;
  // Data writes that the rank that reads the contact may have in flight unconfirmed.
  std::uint64_t credits = most_credits;
  std::vector<Rail> rails;

  Target target() const;
};

std::string encode(const Contact& contact);
// Throws Error(ATOLL_BAD_DATA) if `text` is not the result of encode().
Contact decode(const std::string& text);

// Returns, for each port of a rank, the index of the peer's port with which it is connected, or
// nothing if the port is not used with this peer. Ports of one name are connected if they can reach
// each other: on a fabric of rails, they hang on one leaf switch. If there are none, ports of one
// subnet are connected, and if there are none either, ports between which a router may forward.
// Both ranks get the same pairs. Throws Error(ATOLL_MISMATCH) if no port can reach one of the peer.
std::vector<std::optional<std::size_t>> pair_rails(std::span<const Contact::Rail> own,
                                                   std::span<const Contact::Rail> peer);

}  // namespace atoll_verbs_backend
