// Passing carries small messages, each with at most one file descriptor, between processes of one
// user on one host. It uses Unix datagram sockets in the abstract namespace, so it works whatever
// file systems and IPC namespaces the processes have, and nothing is left behind.
//
// Any process of the host can send to such a socket, since the names of sockets are public. The
// kernel states the user of each sender. Descriptors in a message of another user are never
// installed in this process, so such a user cannot exhaust this process's descriptors.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/descriptor.hpp"

namespace atoll_collectives {

using atoll_v1::atoll::net::Fd;

class Passing {
 public:
  // A caller reads at most this many messages before it checks its deadline, so that a flood of
  // messages cannot keep it busy.
  static constexpr int most_at_once = 64;

  struct Parcel {
    // Size of the message. Of a message that is larger than the buffer, the buffer has the first
    // bytes. If the buffer is larger, its remaining bytes are unchanged.
    std::size_t bytes = 0;
    bool is_ours = false;  // true if the sender is a process of this user
    uid_t user = 0;        // user of the sender
    Fd file;               // the descriptor in the message; empty if there is none
    bool is_cut = false;   // true if the kernel could not install the descriptor
  };

  // Receives at `address`. Throws Error(ATOLL_IO).
  explicit Passing(const std::string& address);

  // Sends a message, together with the descriptor `fd` unless `fd` is -1. Never blocks. Returns 0
  // or an errno value, for which is_momentary() states whether the caller should try again.
  int send(const std::string& address, std::span<const std::byte> message, int fd) const noexcept;
  // Takes one message from the queue; returns nullopt if the queue is empty.
  std::optional<Parcel> receive(std::span<std::byte> message) const noexcept;
  // The descriptor to poll for messages.
  int get() const noexcept { return socket_.get(); }

  // Returns true for temporary errors of send(): the queue of the receiver is full, or too many
  // descriptors of this user are in flight between sockets.
  static bool is_momentary(int error) noexcept;

 private:
  Fd socket_;
};

}  // namespace atoll_collectives
