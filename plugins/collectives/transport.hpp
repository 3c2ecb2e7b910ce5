// Transport is the interface through which bytes reach other ranks. Shared memory, TCP
// (plugins/host) and RDMA (plugins/verbs) implement it.
//
// A transport connects this rank with some ranks of its group by reliable, ordered byte streams,
// one per peer and direction. Only wait() blocks. One caller at a time may use a transport, except
// for wake(), which any thread may call.
//
// To wait without losing a wake-up: take a ticket, try to move bytes, and if none moved, wait with
// that ticket. If the state of the transport changes after the ticket was taken, the wait ends at
// once.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace atoll_collectives {

enum class Direction {
  send,
  recv,
};

// Names a peer and a direction in which bytes must move before the caller can continue.
struct Need {
  int peer;  // rank of the peer in the group
  Direction direction;
};

// Sleeps until one of the descriptors is ready, or for `limit`.
inline void poll_for(std::span<pollfd> descriptors, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{seconds.count(), (limit - seconds).count()};
  ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
}

class Transport {
 public:
  enum class Armed {
    sleep,    // the caller may poll the descriptors, which become ready at the next change
    changed,  // the transport changed after the ticket was taken, so the caller must not sleep
  };

  virtual ~Transport() = default;

  // Accepts as many bytes of `data` as possible without blocking and returns their number; 0 means
  // try again after wait(). Accepted bytes arrive even if this rank closes the transport. Throws
  // Error(ATOLL_PEER_LOST) if the peer is gone.
  virtual std::size_t send(int peer, std::span<const std::byte> data) = 0;
  // Does what send() does, for the bytes of `head` and then those of `data`.
  virtual std::size_t send_both(int peer, std::span<const std::byte> head,
                                std::span<const std::byte> data) {
    const std::size_t n = send(peer, head);
    return n < head.size() ? n : n + send(peer, data);
  }
  // Copies bytes that have arrived into `data` and returns their number; 0 means try again after
  // wait(). Throws Error(ATOLL_PEER_LOST) after the peer has closed and all its bytes were read.
  virtual std::size_t recv(int peer, std::span<std::byte> data) = 0;

  // Returns true if changed() detects every change. Otherwise only wait() detects changes, and
  // callers should not spin.
  virtual bool can_spin() const noexcept = 0;
  // Returns a number that identifies the current state, for changed() and wait().
  virtual std::uint32_t ticket() const noexcept = 0;
  // Returns true if the state has changed since ticket(). Cheap enough for a spin loop.
  virtual bool changed(std::uint32_t ticket) const noexcept = 0;
  // Sleeps until one of `needs` may be met, until another thread calls wake(), or for `limit`. May
  // return early.
  virtual void wait(std::uint32_t ticket, std::span<const Need> needs,
                    std::chrono::nanoseconds limit) {
    std::vector<pollfd> descriptors;
    if (arm(ticket, needs, descriptors) == Armed::sleep) poll_for(descriptors, limit);
    disarm();
  }
  // arm() and disarm() are the two halves of wait(), for a caller that waits for several transports
  // in one poll(). arm() appends the file descriptors to poll. The caller must call disarm()
  // afterwards, whatever arm() returned.
  virtual Armed arm(std::uint32_t ticket, std::span<const Need> needs,
                    std::vector<pollfd>& descriptors) = 0;
  virtual void disarm() noexcept {}
  // Ends a wait() in progress. Not needed if wait() always ends within its time limit.
  virtual void wake() noexcept {}

  // The functions below let an RDMA transport move bytes between the buffers of two ranks without a
  // copy. Other transports need not override them.

  // Announces that the next bytes from `peer` that are not announced yet will be received into
  // `memory`, so that the peer may write them to it before recv() is called. With null
  // memory.data() they must not be written ahead. The memory stays valid until recv() has returned
  // all of these bytes, or until stop().
  virtual void expect(int /*peer*/, std::span<std::byte> /*memory*/) {}
  // Registers memory with the network adapters, and ends that registration. A transport may ignore
  // the calls, which are made only while no operation is in flight.
  virtual void add_memory(std::span<std::byte> /*memory*/) {}
  virtual void remove_memory(const std::byte* /*memory*/) {}
  // Called once after a failure. On return no adapter accesses the caller's memory any more.
  virtual void stop() noexcept {}

  // Waits, for a bounded time, until all sent bytes have left this host. Must be called before an
  // orderly close.
  virtual void finish() noexcept = 0;

  // Returns why no byte can move between this rank and `peer` yet, for error texts; "" if bytes can
  // move.
  virtual std::string obstacle(int /*peer*/) { return {}; }
};

}  // namespace atoll_collectives
