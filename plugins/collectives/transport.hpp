// How bytes reach other ranks: the interface that shared memory and TCP implement today and RDMA
// can implement tomorrow.
//
// A transport joins this rank with some ranks of its group through reliable, ordered streams of
// bytes, one per peer and direction. Nothing here blocks except wait(). One caller at a time,
// except wake(), which any thread may call.
//
// Waiting without losing a wake-up: take a ticket, try to move bytes, and when nothing moved wait
// with that ticket; a change after the ticket was taken ends the wait at once.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace atoll_sdk {

enum class Direction {
  send,
  recv,
};

// "I cannot go on before bytes move in this direction."
struct Need {
  int peer;  // rank of the group
  Direction direction;
};

class Transport {
 public:
  enum class Armed {
    sleep,    // the descriptors tell of changes from now on
    changed,  // something changed since the ticket: do not sleep
  };

  virtual ~Transport() = default;

  // Takes as many bytes of `data` as it can now and returns their number; 0: try again after
  // wait(). What was taken arrives even if this rank closes. Throws Error(ATOLL_PEER_LOST).
  virtual std::size_t send(int peer, std::span<const std::byte> data) = 0;
  // Fills as much of `data` as has arrived and returns the number of bytes; 0: try again after
  // wait(). Throws Error(ATOLL_PEER_LOST) once the peer has closed and everything it sent has been
  // read.
  virtual std::size_t recv(int peer, std::span<std::byte> data) = 0;

  // Whether changed() sees every change; else only wait() can tell, and nobody should spin.
  virtual bool can_spin() const noexcept = 0;
  virtual std::uint32_t ticket() const noexcept = 0;
  // Cheap enough to spin on.
  virtual bool changed(std::uint32_t ticket) const noexcept = 0;
  // Sleeps until one of `needs` may have been met since `ticket`, wake(), or `limit`; may return
  // early.
  virtual void wait(std::uint32_t ticket, std::span<const Need> needs,
                    std::chrono::nanoseconds limit) = 0;
  // The same in two halves, for a caller that waits for several transports in one poll(): appends
  // descriptors, to be followed by disarm() in every case.
  virtual Armed arm(std::uint32_t ticket, std::span<const Need> needs,
                    std::vector<pollfd>& descriptors) = 0;
  virtual void disarm() noexcept = 0;
  virtual void wake() noexcept = 0;

  // Before an orderly close: helps what was sent on its way, for a bounded time.
  virtual void finish() noexcept = 0;
};

}  // namespace atoll_sdk
