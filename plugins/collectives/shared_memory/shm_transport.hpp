// The transport between ranks of one host: a ring buffer in shared memory per pair and direction,
// two copies per byte (into the ring and out of it), and a futex to sleep on.
//
// A rank that waits for TCP sockets at the same time cannot sleep on a futex. It sleeps in poll(),
// and peers wake it with a one-byte datagram to its Unix socket.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/descriptor.hpp"
#include "collectives/shared_memory/segment.hpp"
#include "collectives/transport.hpp"

namespace atoll_collectives {

enum class Doorbell {
  futex_only,       // shared memory is the only transport of the group
  futex_or_socket,  // ranks may wait for other transports at the same time
};

class ShmTransport final : public Transport {
 public:
  // `ranks` are the ranks of the group on this host, in the same order on all of them, including
  // `rank`.
  ShmTransport(std::vector<int> ranks, int rank, Doorbell doorbell);
  ~ShmTransport() override;  // marks this rank as closed

  // Control blocks and staging buffers, by local rank: the position in `ranks`.
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  std::size_t self() const noexcept { return self_; }
  ControlBlock& control_block(std::size_t local) const noexcept {
    return segment(local).inbox().control;
  }
  std::byte* staging(std::size_t local, std::size_t half) const noexcept {
    return segment(local).staging(half);
  }
  const std::string& inbox_name(std::size_t local) const noexcept { return segment(local).name(); }
  bool closed(std::size_t local) const noexcept {
    return segment(local).inbox().closed.load(std::memory_order_acquire) != 0;
  }
  // Call it after a change of this rank's control block: wakes ranks that sleep in sleep_until().
  void notify_sleepers() const noexcept;
  // Sleeps until a peer notifies, until wake(), or for `limit`, unless done() is true.
  template <class Done>
  void sleep_until(const Done& done, std::chrono::nanoseconds limit) noexcept {
    const std::uint32_t before = ticket();
    announce_sleep();
    if (!done()) sleep(before, limit);
    announce_waking();
  }

  // To open: every rank publishes a text, attaches to each other rank with that rank's text, waits
  // until absent() is empty, and then removes the name of its inbox with conceal().
  std::string published() const;
  void attach(int peer, const std::string& published);
  std::vector<int> absent() const;  // ranks that have not attached yet
  void conceal() noexcept;

  std::size_t send(int peer, std::span<const std::byte> data) override;
  std::size_t recv(int peer, std::span<std::byte> data) override;
  bool can_spin() const noexcept override { return true; }
  std::uint32_t ticket() const noexcept override;
  bool changed(std::uint32_t ticket) const noexcept override;
  void wait(std::uint32_t ticket, std::span<const Need> needs,
            std::chrono::nanoseconds limit) override;
  Armed arm(std::uint32_t ticket, std::span<const Need> needs,
            std::vector<pollfd>& descriptors) override;
  void disarm() noexcept override;
  void wake() noexcept override;
  void finish() noexcept override {}  // received from the inbox even after the sender has closed

 private:
  struct Peer {
    std::unique_ptr<Segment> inbox;  // inbox of the peer
    Ring* outgoing = nullptr;        // in the inbox of the peer
    std::span<std::byte> outgoing_data;
    Ring* incoming = nullptr;  // in this rank's inbox
    std::span<std::byte> incoming_data;
  };
  std::size_t local_index(int rank) const;
  Peer& peer(int rank) {
    return peers_[static_cast<std::size_t>(index_[static_cast<std::size_t>(rank)])];
  }
  const Segment& segment(std::size_t local) const noexcept {
    return local == self_ ? *own_ : *peers_[local].inbox;
  }
  void announce_sleep() noexcept;
  void sleep(std::uint32_t before, std::chrono::nanoseconds limit) noexcept;
  void announce_waking() noexcept;
  void ring_doorbell(const Segment& segment) const noexcept;
  void open_socket();

  std::vector<int> ranks_;
  std::vector<int> index_;  // local rank by rank of the group; -1 for ranks of other hosts
  std::size_t self_;
  std::unique_ptr<Segment> own_;
  std::vector<Peer> peers_;
  Descriptor socket_;
};

}  // namespace atoll_collectives
