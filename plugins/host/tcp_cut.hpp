// CutWatch finds out whether the network of a connection is cut. It needs the kernel's view of the
// connection, so callers use it only after no byte has moved for a while.
//
// A peer that does not read is not a cut, even if its process is stopped: its kernel still answers.
// So a time limit alone does not suffice. A network counts as cut if no acknowledgment has arrived
// for the time limit although data is outstanding, and if at least three retransmissions or probes
// in a row had no answer. (TCP_USER_TIMEOUT would also end connections whose peer does not read.)
// If no data is outstanding, the kernel's keepalive detects a cut (tcp_socket.hpp).
#pragma once

#include <chrono>
#include <cstdint>

namespace atoll_host_backend {

// The state of a connection, as the kernel reports it.
struct Health {
  std::uint64_t acknowledged = 0;      // bytes that the peer's kernel has acknowledged
  std::uint64_t received = 0;          // bytes that have arrived from the peer
  bool outstanding = false;            // true if sent data waits for an acknowledgment
  unsigned unanswered = 0;             // retransmissions or probes in a row without an answer
  std::chrono::milliseconds silent{};  // time since the last acknowledgment
};
// Returns false if the socket is not a TCP connection.
bool read_health(int socket, Health& health) noexcept;

class CutWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns true if the connection is cut. Callers call it about once per second: after a longer
  // pause the time without progress begins anew.
  bool look(const Health& health, Clock::time_point now, std::chrono::nanoseconds limit) noexcept;

 private:
  Clock::time_point looked_{};
  Clock::time_point still_since_{};  // time of the last look that saw progress
  Health last_{};
};

}  // namespace atoll_host_backend
