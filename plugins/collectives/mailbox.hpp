// Mailbox: send and recv that are matched by source and tag, for communicators that are opened with
// atoll_group.tags.
//
// A message is a signature, whose `root` holds the tag, and its data. A receive takes the earliest
// message that matches it; messages with one source and tag keep their order. A message that no
// receive matches yet is kept in memory, so its sender goes on. If the kept messages exceed
// `most_kept` bytes, the rank leaves further unmatched messages in the transport, and their senders
// wait.
//
// Threads call perform() at the same time. One of them moves the bytes of all calls; the others
// sleep.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/signature.hpp"

namespace atoll_collectives {

class Mailbox {
 public:
  static constexpr std::size_t most_kept = std::size_t{256} << 20;

  // No other object may use the transports of the team, which must outlive the mailbox.
  explicit Mailbox(Team& team);

  // Performs sends and receives; returns when all are complete: a send when the transport has its
  // data. After the first exception of any call, every call throws Error(ATOLL_ABORTED).
  void perform(std::span<atoll_operation* const> messages);
  // Call this only while no perform() is in progress.
  bool has_failed() const noexcept { return !failure_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  // A send or receive of a call that has not returned.
  struct Post {
    const atoll_operation* operation;
    Signature signature;
    std::size_t done = 0;  // bytes of the signature and the data that were sent
    bool is_complete = false;
  };
  // A message that began to arrive before a receive matched it.
  struct Kept {
    int source;
    Signature signature;
    std::vector<std::byte> data;
    bool is_whole = false;
    Post* receiver = nullptr;  // a receive that matched it while it arrived
  };
  // The message that arrives from a peer.
  struct Arriving {
    Signature signature{};
    std::size_t signature_done = 0, data_done = 0;
    std::span<std::byte> data{};
    // Where its data goes; both are null while the message has no place.
    Post* receiver = nullptr;
    Kept* kept = nullptr;
  };
  struct Peer {
    std::deque<Post*> sends;
    Arriving arriving;
    std::optional<std::string> lost;  // why no byte arrives any more
  };

  void run(Lock& lock, std::span<Post> posts);
  void post(Post& one);
  void deliver_to_self(Post& one);
  bool progress();
  bool send_to(int rank);
  bool receive_from(int rank);
  bool read(int rank, std::span<std::byte> to, std::size_t& done);
  bool place(int rank);
  void arrived(int rank);
  Post* receiver_of(int source, const Signature& signature);
  Kept& keep(int source, const Signature& signature, std::size_t bytes);
  void complete(Post& receiver, int source, const Signature& signature);
  void compare(const Post& receiver, int source, const Signature& signature) const;
  void check_lost(const Post& receiver) const;
  void sleep(Lock& lock, Clock::time_point deadline);
  void check(std::span<const Post> posts, Clock::time_point deadline) const;
  std::string pending_text(std::span<const Post> posts) const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Transport& route(int rank) { return *team_.routes[static_cast<std::size_t>(rank)]; }

  Team& team_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_driven_ = false;  // true while a thread moves bytes or sleeps in the transports
  std::string failure_;     // text of the first failure
  std::vector<Peer> peers_;
  std::list<Post*> receives_;  // receives without a message, in the order of the calls
  std::list<Kept> kept_;       // in the order of arrival
  std::size_t kept_bytes_ = 0;
};

}  // namespace atoll_collectives
