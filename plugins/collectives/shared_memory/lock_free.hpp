// The lock-free protocols of shared memory: every load and store of the atomic variables through
// which the ranks of a host synchronize, with its memory order.
//
// The structures are templates over the atomic type, so that tests/litmus can run exactly this code
// on a model of weak memory. Shared memory holds the instances with std::atomic.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace atoll_collectives {

constexpr std::size_t cache_line = 64;

// Header of a ring buffer that one rank writes and one rank reads. `written` and `consumed` count
// bytes since the ring was created; modulo the size of the ring, a power of two, they are offsets
// in the buffer. copy(offset in the ring, offset in the data, bytes) copies a part that does not
// wrap around the end of the ring.
template <template <class> class Atomic>
struct RingOf {
  alignas(cache_line) Atomic<std::uint64_t> written;
  alignas(cache_line) Atomic<std::uint64_t> consumed;
  // A value of Opened: how far the rank that writes to the ring has opened its transport.
  alignas(cache_line) Atomic<std::uint32_t> opened;

  // Writes at most `most` bytes into the free part of the ring and returns their number.
  template <class Copy>
  std::size_t write(std::size_t size, std::size_t most, const Copy& copy) {
    const std::uint64_t end = written.load(std::memory_order_relaxed);
    // This load acquires, so that the reader has read a byte before this rank overwrites it.
    const std::uint64_t begin = consumed.load(std::memory_order_acquire);
    const std::size_t n = std::min(most, size - static_cast<std::size_t>(end - begin));
    if (n == 0) return 0;
    copy_around(size, end, n, copy);
    written.store(end + n, std::memory_order_release);
    return n;
  }

  // Reads at most `most` bytes and returns their number.
  template <class Copy>
  std::size_t read(std::size_t size, std::size_t most, const Copy& copy) {
    const std::uint64_t begin = consumed.load(std::memory_order_relaxed);
    const std::uint64_t end = written.load(std::memory_order_acquire);
    const std::size_t n = std::min(most, static_cast<std::size_t>(end - begin));
    if (n == 0) return 0;
    copy_around(size, begin, n, copy);
    consumed.store(begin + n, std::memory_order_release);
    return n;
  }

  // Like read(), but returns nullopt once the writer has closed and all its bytes have been read.
  // Loads `closed` first: if it is set, the load of `written` that follows sees the writer's last
  // byte.
  template <class Copy>
  std::optional<std::size_t> read_until_closed(const Atomic<std::uint32_t>& closed,
                                               std::size_t size, std::size_t most,
                                               const Copy& copy) {
    const bool ended = closed.load(std::memory_order_acquire) != 0;
    const std::size_t n = read(size, most, copy);
    if (n == 0 && ended) return std::nullopt;
    return n;
  }

 private:
  template <class Copy>
  static void copy_around(std::size_t size, std::uint64_t position, std::size_t n,
                          const Copy& copy) {
    const std::size_t at = static_cast<std::size_t>(position) & (size - 1);
    const std::size_t first = std::min(n, size - at);
    copy(at, std::size_t{0}, first);
    if (n > first) copy(std::size_t{0}, first, n - first);
  }
};

// How the owner of a bell waits for events.
enum class Sleeper : std::uint32_t {
  awake = 0,
  futex = 1,   // the owner sleeps on the futex BellOf::rung
  socket = 2,  // the owner sleeps in poll() on its datagram socket
};

// The bell on which a rank sleeps. The owner announces its sleep before it checks for events, and
// the other ranks cause the event before they check for that announcement. All these accesses are
// sequentially consistent, so at least one side sees the other, and no wake-up is lost.
template <template <class> class Atomic>
struct BellOf {
  Atomic<std::uint32_t> rung;     // futex word, to which each event for the owner adds 1
  Atomic<std::uint32_t> sleeper;  // how the owner waits, a value of Sleeper

  // Rings, and calls wake(Sleeper) if the owner may be asleep.
  template <class Wake>
  void ring(const Wake& wake) {
    rung.fetch_add(1, std::memory_order_seq_cst);
    const auto how = Sleeper{sleeper.load(std::memory_order_seq_cst)};
    if (how != Sleeper::awake) wake(how);
  }
  // Calls ring() unless the owner is awake. Before this call, the caller must publish what the
  // owner waits for with a sequentially consistent store.
  template <class Wake>
  void ring_sleeper(const Wake& wake) {
    if (Sleeper{sleeper.load(std::memory_order_seq_cst)} != Sleeper::awake) ring(wake);
  }

  // The following functions are for the owner. A ticket is the value of `rung` before the owner
  // looks for events. The load acquires, so that the owner sees the events that rang the bell
  // before.
  std::uint32_t ticket() const { return rung.load(std::memory_order_acquire); }
  // Announces a sleep; returns false if the bell has rung since `ticket`.
  bool arm(std::uint32_t ticket, Sleeper how) {
    announce(how);
    return is_silent(ticket);
  }
  // Ends an announced sleep.
  void disarm() {
    sleeper.store(static_cast<std::uint32_t>(Sleeper::awake), std::memory_order_relaxed);
  }
  // Sleeps once by futex_wait(ticket) unless done() is true or the bell rings first.
  template <class Done, class Wait>
  void sleep_until(const Done& done, const Wait& futex_wait) {
    const std::uint32_t before = ticket();
    announce(Sleeper::futex);
    if (!done() && is_silent(before)) futex_wait(before);
    disarm();
  }

 private:
  void announce(Sleeper how) {
    sleeper.store(static_cast<std::uint32_t>(how), std::memory_order_seq_cst);
  }
  bool is_silent(std::uint32_t ticket) const {
    return rung.load(std::memory_order_seq_cst) == ticket;
  }
};

// The progress of a rank: its step, and the phase of that step, in one number that only grows. A
// rank that sees a position also sees what the owner wrote to memory before it arrived there.
template <template <class> class Atomic>
struct ProgressOf {
  Atomic<std::uint64_t> reached;

  // Publishes that the owner has arrived, then calls notify(), which rings the bells of sleepers.
  // The store here and the load in position() are sequentially consistent, as
  // BellOf::ring_sleeper() requires.
  template <class Notify>
  void arrive(std::uint64_t position, const Notify& notify) {
    reached.store(position, std::memory_order_seq_cst);
    notify();
  }
  std::uint64_t position() const { return reached.load(std::memory_order_seq_cst); }
  // Returns true if the owner has closed its inbox without reaching `position`. Loads `closed`
  // first: in the opposite order, an owner that arrives and then closes between the two loads would
  // look as if it had left.
  bool has_left(const Atomic<std::uint32_t>& closed, std::uint64_t position) const {
    return closed.load(std::memory_order_acquire) != 0 && this->position() < position;
  }
};

// Counters for the jobs of a step that any rank of the host may perform. The jobs of a step are
// numbered from the step's first position `begin`; positions of later steps are larger.
template <template <class> class Atomic>
struct SharedWorkOf {
  alignas(cache_line) Atomic<std::uint64_t> claimed;
  alignas(cache_line) Atomic<std::uint64_t> done;

  // Claims the next job and returns its index, or -1 if all jobs before `end` have been claimed.
  // Other ranks continue once all jobs of this step are done, so the counter may already be that of
  // the next step. Its larger value then means that no job of this step is left.
  std::int64_t claim(std::uint64_t begin, std::uint64_t end) {
    std::uint64_t seen = claimed.load(std::memory_order_acquire);
    while (true) {
      const std::uint64_t next = std::max(seen, begin);
      if (next >= end) return -1;
      if (claimed.compare_exchange_weak(seen, next + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        return static_cast<std::int64_t>(next - begin);
      }
    }
  }
  // Counts a claimed job as done, with a sequentially consistent store, as BellOf::ring_sleeper()
  // requires. After the last job of a step, the caller rings the bells of sleepers.
  void finish(std::uint64_t begin) {
    std::uint64_t seen = done.load(std::memory_order_acquire);
    while (
        !done.compare_exchange_weak(seen, std::max(seen, begin) + 1, std::memory_order_seq_cst)) {
    }
  }
  // Returns true once all jobs before `end` are done. After that, no rank accesses the buffers of
  // the step, and this rank sees what the jobs wrote.
  bool all_done(std::uint64_t end) const { return done.load(std::memory_order_seq_cst) >= end; }
};

}  // namespace atoll_collectives
