// How bytes reach other ranks: the interface of shared memory and TCP, and later of RDMA.
//
// A transport connects this rank with some ranks of its group by reliable, ordered byte streams,
// one per peer and direction. Only wait() blocks. One caller at a time may use a transport, except
// for wake(), which any thread may call.
//
// To wait without losing a wake-up: take a ticket, try to move bytes, and if none moved, wait with
// that ticket. A change after the ticket was taken ends the wait at once.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace atoll_collectives {

enum class Direction {
  send,
  recv,
};

// The caller needs bytes to move to or from this peer before it can continue.
struct Need {
  int peer;  // rank in the group
  Direction direction;
};

class Transport {
 public:
  enum class Armed {
    sleep,    // the descriptors become ready at the next change
    changed,  // something changed after the ticket was taken: do not sleep
  };

  virtual ~Transport() = default;

  // Accepts as many bytes of `data` as possible without blocking and returns their number; 0 means
  // try again after wait(). Accepted bytes arrive even if this rank closes. Throws
  // Error(ATOLL_PEER_LOST).
  virtual std::size_t send(int peer, std::span<const std::byte> data) = 0;
  // Copies bytes that have arrived into `data` and returns their number; 0 means try again after
  // wait(). Throws Error(ATOLL_PEER_LOST) after the peer has closed and all its bytes were read.
  virtual std::size_t recv(int peer, std::span<std::byte> data) = 0;

  // True if changed() sees every change. Otherwise only wait() notices changes, and callers should
  // not spin.
  virtual bool can_spin() const noexcept = 0;
  virtual std::uint32_t ticket() const noexcept = 0;
  // Cheap enough to call in a spin loop.
  virtual bool changed(std::uint32_t ticket) const noexcept = 0;
  // Sleeps until one of `needs` may be met, until wake(), or for `limit`. May return early.
  virtual void wait(std::uint32_t ticket, std::span<const Need> needs,
                    std::chrono::nanoseconds limit) = 0;
  // wait() in two halves, for a caller that waits for several transports in one poll(). arm()
  // appends the descriptors to poll. The caller must call disarm() afterwards, whatever arm()
  // returned.
  virtual Armed arm(std::uint32_t ticket, std::span<const Need> needs,
                    std::vector<pollfd>& descriptors) = 0;
  virtual void disarm() noexcept = 0;
  virtual void wake() noexcept = 0;

  // Call it before an orderly close: waits, for a bounded time, until sent bytes have left this
  // host.
  virtual void finish() noexcept = 0;
};

}  // namespace atoll_collectives
