// Channels between the ranks of one host: a ring of shared memory per pair and direction, two
// copies per byte (into the ring, out of it), a futex to sleep on.
//
// A rank that waits for sockets at the same time cannot sleep on a futex; it sleeps in poll(), and
// whoever would have woken it sends an empty datagram to a Unix socket of its own instead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/shm_segment.hpp"
#include "sdk/descriptor.hpp"
#include "sdk/transport.hpp"

namespace atoll_sdk::host {

enum class Bells {
  futex_only,       // shared memory is the group's only transport
  futex_or_socket,  // others may be waited for at the same time
};

class ShmTransport final : public atoll_sdk::Transport {
 public:
  // `ranks`: of the group, on this host, the same order on all of them; `rank` is one of them.
  ShmTransport(std::vector<int> ranks, int rank, Bells bells);
  ~ShmTransport() override;  // tells the others that this rank is gone

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
  void wait(std::uint32_t ticket, std::span<const atoll_sdk::Need> needs,
            std::chrono::nanoseconds limit) override;
  Armed arm(std::uint32_t ticket, std::span<const atoll_sdk::Need> needs,
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
  void ring_bell(const Segment& segment) const noexcept;
  void open_socket();

  std::vector<int> ranks_;
  std::vector<int> index_;  // by rank of the group: place in ranks_ and peers_; -1: elsewhere
  std::size_t self_;
  std::unique_ptr<Segment> own_;
  std::vector<Peer> peers_;
  atoll_sdk::Descriptor socket_;
};

}  // namespace atoll_sdk::host
