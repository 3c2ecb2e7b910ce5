// The progress engine under every algorithm: sends and receives over the channels of a
// communicator, run to completion, with one place that waits, polls abort and deadline, and words
// the failures.
//
// Vocabulary. Team: the ranks of a communicator as this rank reaches them. Lane: what is queued for
// one peer, in the order of the stream. Exchange: one operation (or one group of messages) on a
// team. Signature: what a rank believes that the operation is; it goes first through every lane
// that an operation uses, so that ranks which disagree are told instead of mixing up their bytes.
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

namespace atoll_sdk {

struct Lane {
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
  // Items of the exchange so far, and those done.
  std::uint64_t sends_queued = 0, sends_done = 0, recvs_queued = 0, recvs_done = 0;
  double factor = 1.0;  // of the peer
  // Payload bytes of the operation under way, for messages.
  std::uint64_t sent = 0, to_send = 0, received = 0, to_receive = 0;
  // Messages so far: their ordinals.
  std::uint64_t messages_sent = 0, messages_received = 0;
};

enum class Waiting {
  spin_then_sleep,
  sleep,  // ranks outnumber cores: a spinning rank keeps the one it waits for from running
};

struct Team {
  std::string name;
  int rank = 0;
  std::vector<int> world_ranks;        // by rank
  std::vector<Transport*> routes;      // by rank; NULL: oneself
  std::vector<Transport*> transports;  // each of them once
  Waiting waiting = Waiting::sleep;
  std::atomic<bool> aborted = false;
  std::uint64_t collectives = 0;  // number of the one under way
  std::vector<Lane> lanes;        // by rank; scratch of the exchange under way

  int size() const noexcept { return static_cast<int>(world_ranks.size()); }
  // "rank 2 (world rank 5)"
  std::string describe(int member) const;
};

// One at a time per team. An exchange that threw leaves streams in an undefined place: the team
// must not be used again. Buffers must stay alive until run() has returned.
class Exchange {
 public:
  // `operation` is the collective, or the first message of a group; it gives name, signature and
  // deadline.
  Exchange(Team& team, const atoll_operation& operation);

  // Exchanges the collective's signature with `peer`, before any payload between the two.
  void greet(int peer);
  void greet_all();
  // The same for messages, one signature each.
  void announce(int peer, const Signature& signature);
  void expect(int peer, const Signature& signature);

  // Return a ticket: how many items of this lane and direction have been queued, this one included.
  std::uint64_t send(int peer, std::span<const std::byte> data);
  std::uint64_t recv(int peer, std::span<std::byte> data);

  // Moves what can be moved now, for an algorithm that has work of its own meanwhile.
  void start();
  // Moves what can be moved now; false: nothing.
  bool progress();
  // Until the item of the ticket is done; everything else goes on meanwhile.
  void run_until_sent(int peer, std::uint64_t ticket);
  void run_until_received(int peer, std::uint64_t ticket);
  // Until everything asked for has arrived; sends go on meanwhile and may remain.
  void run_receives();
  // Of a peer whose signature has arrived.
  double factor(int peer) const { return lane(peer).factor; }
  // Until nothing is pending. Throws Error: ATOLL_ABORTED, ATOLL_TIMEOUT, ATOLL_PEER_LOST,
  // ATOLL_MISMATCH.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  template <class Done>
  void run_until(const Done& done);
  bool push(int peer);
  bool pull(int peer);
  void finish_signature(int peer, const Lane::Incoming& item) const;
  void check() const;
  void wait(std::chrono::nanoseconds limit);
  bool spin();
  void collect_needs();
  void take_tickets();
  std::string label() const;
  std::string pending_text() const;
  Lane& lane(int peer) { return team_.lanes[static_cast<std::size_t>(peer)]; }
  const Lane& lane(int peer) const { return team_.lanes[static_cast<std::size_t>(peer)]; }
  Transport& route(int peer) { return *team_.routes[static_cast<std::size_t>(peer)]; }

  Team& team_;
  const atoll_operation& operation_;
  Signature signature_;
  Clock::time_point deadline_;
  std::size_t pending_sends_ = 0;
  std::size_t pending_recvs_ = 0;
  std::vector<int> peers_;                // with a lane in use, nearest higher rank first
  std::vector<std::uint32_t> tickets_;    // by transport
  std::vector<std::vector<Need>> needs_;  // by transport
};

}  // namespace atoll_sdk
