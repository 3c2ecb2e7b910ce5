// ShmTransport connects the ranks of one host. Each pair of ranks has one ring buffer per direction
// in shared memory, so every byte is copied twice: into the ring and out of it. A waiting rank
// sleeps on a futex.
//
// A rank that waits for TCP sockets at the same time cannot sleep on a futex. Such a rank sleeps in
// poll(), and peers wake it with a one-byte datagram to its Unix socket.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/auth.hpp"
#include "collectives/shared_memory/passing.hpp"
#include "collectives/shared_memory/segment.hpp"
#include "collectives/transport.hpp"
#include "core/descriptor.hpp"

namespace atoll_collectives {

// How a peer can wake a sleeping rank.
enum class Doorbell {
  futex_only,       // a futex wakes the rank, which waits for no other transport
  futex_or_socket,  // a futex or a socket wakes the rank, which may wait for other transports too
};

class ShmTransport final : public Transport {
 public:
  // `ranks` lists the ranks of the communicator on this host, including `rank`, in the same order
  // on every rank.
  ShmTransport(std::vector<int> ranks, int rank, Doorbell doorbell);
  ~ShmTransport() override;  // shows the peers that this rank has closed its transport

  // Access to the control blocks and staging buffers of the ranks of this host. A local rank is an
  // index in ranks().
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  std::size_t self() const noexcept { return self_; }
  ControlBlock& control_block(std::size_t local) const noexcept {
    return segment(local).inbox().control;
  }
  std::byte* staging(std::size_t local, std::size_t half) const noexcept {
    return segment(local).staging(half);
  }
  const std::string& inbox_name(std::size_t local) const noexcept { return segment(local).name(); }
  const std::atomic<std::uint32_t>& closed(std::size_t local) const noexcept {
    return segment(local).inbox().closed;
  }
  // Wakes the ranks that sleep in sleep_until(). Must be called after each change of this rank's
  // control block.
  void notify_sleepers() const noexcept;
  // Sleeps until a peer calls notify_sleepers(), until wake() is called, or for `limit`. Returns at
  // once if done() is true.
  template <class Done>
  void sleep_until(const Done& done, std::chrono::nanoseconds limit) noexcept {
    own_->inbox().bell.sleep_until(done, [&](std::uint32_t before) { sleep(before, limit); });
  }

  // To open the transport, every rank sends the text of published() to all other ranks, passes the
  // text of each other rank to await_peer(), and then calls advance() until it returns true.
  std::string published() const;
  void await_peer(int peer, const std::string& published);
  // Passes this rank's inbox to the other ranks and maps the inboxes that have arrived. Never
  // blocks. Returns true once every rank of the host has mapped every other rank's inbox. Throws
  // NoSharedMemory if the kernel does not let these ranks share memory; no rank's advance() then
  // ever returns true.
  bool advance();
  std::vector<int> absent() const;  // ranks that have not opened the transport yet

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
  void finish() noexcept override {}  // does nothing: sent bytes stay readable after closing

 private:
  struct Peer {
    std::unique_ptr<Segment> inbox;  // inbox of the peer; null for this rank
    // The peer has written these three values to the store: the name of its inbox, the size of a
    // ring in it, and the random value by which this rank recognises the peer's messages.
    std::string name;
    std::size_t ring_bytes = 0;
    Digest word{};
    bool passed = false;       // true once this rank has passed its inbox to the peer
    Ring* outgoing = nullptr;  // ring in the peer's inbox to which this rank writes
    std::span<std::byte> outgoing_data;
    Ring* incoming = nullptr;  // ring in this rank's inbox to which the peer writes
    std::span<std::byte> incoming_data;
  };
  std::size_t local_index(int rank) const;
  Peer& peer(int rank) {
    return peers_[static_cast<std::size_t>(index_[static_cast<std::size_t>(rank)])];
  }
  const Segment& segment(std::size_t local) const noexcept {
    return local == self_ ? *own_ : *peers_[local].inbox;
  }
  void pass_inbox(std::size_t local);
  bool receive_inbox();
  void attach(std::size_t local, const Passing::Parcel& parcel);
  void sleep(std::uint32_t before, std::chrono::nanoseconds limit) noexcept;
  void wake(const Segment& segment, Sleeper how) const noexcept;
  void ring_doorbell(const Segment& segment) const noexcept;

  std::vector<int> ranks_;
  std::vector<int>
      index_;  // local rank of each rank of the communicator; -1 for ranks of other hosts
  std::size_t self_;
  const pid_t process_ = ::getpid();  // process that opened the transport
  std::unique_ptr<Segment> own_;
  std::vector<Peer> peers_;
  Digest word_;                     // proves to the other ranks that a message is from this rank
  std::optional<Passing> passing_;  // passes inboxes; exists only while the transport opens
  Fd socket_;
};

}  // namespace atoll_collectives
