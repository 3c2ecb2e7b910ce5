// Exchange is the progress engine of every collective. It sends and receives over the transports of
// a communicator until all bytes have moved. While it waits, it checks for an abort and for the
// deadline, and it composes the error texts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/signature.hpp"
#include "collectives/transport.hpp"

namespace atoll_collectives {

// A Queue holds the items to send to a peer, or to receive from it. Items are transferred in the
// order in which they were queued.
struct Queue {
  struct Item {
    // Data to send, which is only read, or memory for received data. Empty if the item is a
    // signature.
    std::span<std::byte> payload = {};
    Signature signature = {};  // signature to send, or signature that has arrived
    Signature expected = {};   // signature that the peer is expected to send
    std::size_t done = 0;      // number of bytes transferred so far

    std::span<std::byte> bytes() {
      return payload.empty() ? std::as_writable_bytes(std::span(&signature, 1)) : payload;
    }
  };

  bool pending() const noexcept { return next < items.size(); }
  // Empties the queue and sets its counters to 0.
  void reset() noexcept {
    items.clear();
    next = 0;
    queued = completed = moved = total = 0;
  }

  std::vector<Item> items;
  std::size_t next = 0;
  // Numbers of items queued and of items completed since the exchange began.
  std::uint64_t queued = 0, completed = 0;
  // Payload bytes of the current operation: moved so far, and in total. Error texts report them.
  std::uint64_t moved = 0, total = 0;
  // Number of messages in this direction since the communicator was opened, which is the ordinal of
  // the next message.
  std::uint64_t messages = 0;
};

// A Channel holds the send and receive queues for one peer.
struct Channel {
  Queue sends, recvs;
  double factor = 1.0;  // factor by which the peer's data is scaled; part of the peer's signature
};

// Executes the pause instruction of the CPU. Call it in loops that wait for another core.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class Waiting {
  spin_then_sleep,
  sleep,  // sleeps at once; used if ranks outnumber cores, when spinning would delay other ranks
};

// A Team lists the ranks of a communicator and the transport that reaches each of them.
struct Team {
  std::string name;
  int rank = 0;
  std::vector<int> world_ranks;        // for each rank of the team, its rank in the World
  std::vector<Transport*> routes;      // transport to each rank; null for this rank
  std::vector<Transport*> transports;  // every transport of the team, without duplicates
  Waiting waiting = Waiting::sleep;
  int processors = 1;  // processors of this host on which at least one rank of the team may run
  std::atomic<bool> aborted = false;
  // Number of collectives performed so far, which is the ordinal of the current one.
  std::uint64_t collectives = 0;
  std::vector<Channel> channels;  // queues for each rank; each new Exchange resets them

  int size() const noexcept { return static_cast<int>(world_ranks.size()); }
  // Returns a text such as "rank 2 (world rank 5)".
  std::string describe(int member) const;
};

// Returns a text such as "waiting for RANK; RANK; and for 3 more ranks", which names at most 8 of
// the pending ranks, or returns `otherwise` if no rank is pending.
std::string waiting_text(std::span<const std::string> pending, std::string_view otherwise);

// An Exchange performs the transfers of one collective, or of one group of messages, on a team. A
// team can have only one Exchange at a time. After an exception the positions in the byte streams
// are undefined, so the team must not be used again. Buffers passed to send() and recv() must stay
// valid until run() has returned.
//
// The first bytes that an operation sends to a peer are a signature, so that ranks that called
// different operations report a mismatch instead of exchanging wrong data.
class Exchange {
 public:
  // `operation` is the collective, or the first message of a group of messages. It provides the
  // name for error texts, the signature and the deadline.
  Exchange(Team& team, const atoll_operation& operation);

  // Queues the exchange of signatures with `peer`, and the comparison of the peer's signature with
  // this rank's. Must be called before send() and recv() with the same peer.
  void compare_with(int peer);
  void compare_with_all();
  // For point-to-point messages, each of which has its own signature: send_signature() only sends a
  // signature, and expect_signature() only receives one and compares it.
  void send_signature(int peer, const Signature& signature);
  void expect_signature(int peer, const Signature& signature);

  // send() and recv() queue one item and return its ticket: the number of items queued so far for
  // this peer and direction, including the new item.
  std::uint64_t send(int peer, std::span<const std::byte> data);
  std::uint64_t recv(int peer, std::span<std::byte> data);

  // Checks for an abort and for the deadline, then transfers all bytes that can be transferred
  // without waiting.
  void start();
  // Transfers all bytes that can be transferred without waiting. Returns false if no byte was
  // transferred.
  bool progress();
  // Both functions wait until the item with this ticket, the number that send() or recv() returned,
  // has been transferred. All other items progress meanwhile.
  void run_until_sent(int peer, std::uint64_t ticket);
  void run_until_received(int peer, std::uint64_t ticket);
  // Waits until every queued receive is complete. Sends progress meanwhile, but may be incomplete
  // on return.
  void run_receives();
  // Returns true if a queued item has not been transferred.
  bool is_pending() const noexcept { return pending_sends_ + pending_recvs_ > 0; }
  // Transfers all bytes that can be transferred without waiting, and returns if there were any.
  // Otherwise sleeps until done() is true, data can move, or `limit` has passed. Ranks of the same
  // host wake this rank through its doorbell when done() becomes true.
  void sleep_until(const std::function<bool()>& done, std::chrono::nanoseconds limit);
  // Returns all other ranks, starting with the next higher rank.
  const std::vector<int>& peers() const noexcept { return peers_; }
  // Returns the factor by which a peer's data is scaled. Valid once the peer's signature has
  // arrived.
  double factor(int peer) const { return channel(peer).factor; }
  // Waits until every queued item has been transferred. Throws Error with ATOLL_ABORTED,
  // ATOLL_TIMEOUT, ATOLL_PEER_LOST or ATOLL_MISMATCH.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  template <class Done>
  void run_until(const Done& done);
  std::uint64_t enqueue(int peer, Direction direction, const Queue::Item& item);
  bool transfer(int peer, Direction direction);
  std::size_t send_next(int peer, Queue& items);
  void send_signature(int peer) noexcept;
  void accept_signature(int peer, const Queue::Item& item);
  void check() const;
  void wait(std::chrono::nanoseconds limit);
  void poll_all(const std::function<bool()>& done, std::chrono::nanoseconds limit);
  void take_tickets();
  bool spin();
  void collect_needs();
  std::string label() const;
  std::string pending_text() const;
  Channel& channel(int peer) { return team_.channels[static_cast<std::size_t>(peer)]; }
  const Channel& channel(int peer) const { return team_.channels[static_cast<std::size_t>(peer)]; }
  Queue& queue(int peer, Direction direction) {
    return direction == Direction::send ? channel(peer).sends : channel(peer).recvs;
  }
  std::size_t& pending(Direction direction) {
    return direction == Direction::send ? pending_sends_ : pending_recvs_;
  }
  Transport& route(int peer) { return *team_.routes[static_cast<std::size_t>(peer)]; }

  Team& team_;
  const atoll_operation& operation_;
  Signature signature_;
  Clock::time_point deadline_;
  std::size_t pending_sends_ = 0;
  std::size_t pending_recvs_ = 0;
  std::vector<int> peers_;
  std::vector<std::uint32_t> tickets_;    // ticket of each transport, to be passed to its wait()
  std::vector<std::vector<Need>> needs_;  // for each transport, the peers and directions to await
};

}  // namespace atoll_collectives
