// Channels between the ranks of one host: a ring of shared memory per pair and direction, two
// copies per byte (into the ring, out of it), a futex to sleep on.
//
// A rank that waits for sockets at the same time cannot sleep on a futex; it sleeps in poll(), and
// whoever would have woken it sends an empty datagram to a Unix socket of its own instead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/descriptor.hpp"
#include "collectives/shm_segment.hpp"
#include "collectives/transport.hpp"

namespace atoll_sdk {

enum class Bells {
  futex_only,       // shared memory is the group's only transport
  futex_or_socket,  // others may be waited for at the same time
};

class ShmTransport final : public Transport {
 public:
  // `ranks`: of the group, on this host, the same order on all of them; `rank` is one of them.
  ShmTransport(std::vector<int> ranks, int rank, Bells bells);
  ~ShmTransport() override;  // tells the others that this rank is gone

  // The board: seats and stages of the ranks of this host, in the order of `ranks`.
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  std::size_t self() const noexcept { return self_; }
  Seat& seat(std::size_t local) const noexcept { return segment(local).inbox().seat; }
  std::byte* stage(std::size_t local, std::size_t half) const noexcept {
    return segment(local).stage(half);
  }
  const std::string& inbox_name(std::size_t local) const noexcept { return segment(local).name(); }
  bool closed(std::size_t local) const noexcept {
    return segment(local).inbox().closed.load(std::memory_order_acquire) != 0;
  }
  // After a change of the own seat: wakes those who sleep in sleep_until().
  void tell_all() const noexcept;
  // Sleeps until a peer tells of a change, wake(), or `limit`; not at all when `done` by then.
  template <class Done>
  void sleep_until(const Done& done, std::chrono::nanoseconds limit) noexcept {
    const std::uint32_t before = ticket();
    announce_sleep();
    if (!done()) sleep(before, limit);
    announce_waking();
  }

  // Opening: every rank publishes, attaches to each other one with what that one published, and
  // waits until absent() is empty; then conceal() removes the name.
  std::string published() const;
  void attach(int peer, const std::string& published);
  std::vector<int> absent() const;  // peers that have not attached yet
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
  void finish() noexcept override {}  // a peer's inbox outlives the sender

 private:
  struct Peer {
    std::unique_ptr<Segment> inbox;  // the peer's
    Ring* outgoing = nullptr;        // in the peer's inbox
    std::span<std::byte> outgoing_data;
    Ring* incoming = nullptr;  // in the own inbox
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
  void ring_bell(const Segment& segment) const noexcept;
  void open_socket();

  std::vector<int> ranks_;
  std::vector<int> index_;  // by rank of the group: place in ranks_ and peers_; -1: elsewhere
  std::size_t self_;
  std::unique_ptr<Segment> own_;
  std::vector<Peer> peers_;
  Descriptor socket_;
};

}  // namespace atoll_sdk
