// The progress engine of every collective: it sends and receives over the transports of a
// communicator until all bytes have moved, and is the one place that waits, polls abort and
// deadline, and writes error texts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/signature.hpp"
#include "collectives/transport.hpp"

namespace atoll_collectives {

// The queues of one peer. Items move in the order in which they were queued.
struct Channel {
  enum class Content {
    payload,
    signature,
  };
  struct Outgoing {
    Content content;
    const std::byte* data;
    std::size_t size;
    std::size_t done;
    Signature signature;
  };
  struct Incoming {
    Content content;
    std::byte* data;
    std::size_t size;
    std::size_t done;
    Signature expected;
    Signature arrived;
  };
  std::vector<Outgoing> sends;
  std::vector<Incoming> recvs;
  std::size_t next_send = 0;
  std::size_t next_recv = 0;
  // Numbers of items since the exchange began.
  std::uint64_t sends_queued = 0, sends_done = 0, recvs_queued = 0, recvs_done = 0;
  double factor = 1.0;  // factor of the peer, from its signature
  // Payload bytes of the current operation, for error texts.
  std::uint64_t sent = 0, to_send = 0, received = 0, to_receive = 0;
  // Numbers of messages since the communicator was opened, which are their ordinals.
  std::uint64_t messages_sent = 0, messages_received = 0;
};

enum class Waiting {
  spin_then_sleep,
  sleep,  // for more ranks than cores: a spinning rank delays the rank that it waits for
};

// The ranks of a communicator, and the transport that reaches each of them.
struct Team {
  std::string name;
  int rank = 0;
  std::vector<int> world_ranks;        // indexed by rank
  std::vector<Transport*> routes;      // indexed by rank; null for this rank
  std::vector<Transport*> transports;  // each transport once
  Waiting waiting = Waiting::sleep;
  std::atomic<bool> aborted = false;
  std::uint64_t collectives = 0;  // ordinal of the current collective
  std::vector<Channel> channels;  // indexed by rank; reset by each exchange

  int size() const noexcept { return static_cast<int>(world_ranks.size()); }
  // "rank 2 (world rank 5)"
  std::string describe(int member) const;
};

// One operation, or one group of messages, on a team. A team has one exchange at a time. After an
// exception the positions in the streams are undefined, so the team must not be used again.
// Buffers must stay alive until run() has returned.
//
// Every channel that an operation uses begins with a signature, so that ranks that called different
// operations report a mismatch instead of mixing up their data.
class Exchange {
 public:
  // `operation` is the collective or the first message of a group. It provides the name, signature
  // and deadline.
  Exchange(Team& team, const atoll_operation& operation);

  // Exchanges and compares the collective's signature with `peer`. Must come before any payload.
  void compare_with(int peer);
  void compare_with_all();
  // The two halves for messages, which have one signature each.
  void send_signature(int peer, const Signature& signature);
  void expect_signature(int peer, const Signature& signature);

  // Queue one item. Both return a ticket: the number of items queued so far for this peer and
  // direction, including this one.
  std::uint64_t send(int peer, std::span<const std::byte> data);
  std::uint64_t recv(int peer, std::span<std::byte> data);

  // Checks abort and deadline and moves what can be moved without waiting.
  void start();
  // Moves what can be moved without waiting; returns false if nothing moved.
  bool progress();
  // Waits until the item of the ticket is done. All other items progress meanwhile.
  void run_until_sent(int peer, std::uint64_t ticket);
  void run_until_received(int peer, std::uint64_t ticket);
  // Waits until every queued receive is done. Sends progress meanwhile and may remain.
  void run_receives();
  // The factor of a peer whose signature has arrived.
  double factor(int peer) const { return channel(peer).factor; }
  // Waits until every queued item is done. Throws Error: ATOLL_ABORTED, ATOLL_TIMEOUT,
  // ATOLL_PEER_LOST, ATOLL_MISMATCH.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  template <class Done>
  void run_until(const Done& done);
  bool push(int peer);
  bool pull(int peer);
  void finish_signature(int peer, const Channel::Incoming& item) const;
  void check() const;
  void wait(std::chrono::nanoseconds limit);
  bool spin();
  void collect_needs();
  void take_tickets();
  std::string label() const;
  std::string pending_text() const;
  Channel& channel(int peer) { return team_.channels[static_cast<std::size_t>(peer)]; }
  const Channel& channel(int peer) const { return team_.channels[static_cast<std::size_t>(peer)]; }
  Transport& route(int peer) { return *team_.routes[static_cast<std::size_t>(peer)]; }

  Team& team_;
  const atoll_operation& operation_;
  Signature signature_;
  Clock::time_point deadline_;
  std::size_t pending_sends_ = 0;
  std::size_t pending_recvs_ = 0;
  std::vector<int> peers_;                // the next higher rank first
  std::vector<std::uint32_t> tickets_;    // indexed by transport
  std::vector<std::vector<Need>> needs_;  // indexed by transport
};

}  // namespace atoll_collectives
