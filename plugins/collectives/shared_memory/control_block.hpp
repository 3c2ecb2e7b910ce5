// The control block of a rank: the part of its inbox in shared memory through which the ranks of a
// host synchronize. All ranks of the host read a control block. Only its own rank writes to it,
// except for the work counters, to which all ranks write.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "collectives/shared_memory/lock_free.hpp"
#include "collectives/signature.hpp"

namespace atoll_collectives {

// Where other ranks of the host find a buffer.
struct WindowOffset {
  bool is_mapped() const noexcept { return window >= 0; }
  friend bool operator==(const WindowOffset&, const WindowOffset&) = default;

  std::int64_t window = -1;  // index of the registered window; -1: other ranks cannot access it
  std::uint64_t offset = 0;  // offset of the buffer in the window, in bytes
};

// An Advert is what a rank publishes when it arrives at a step: the operation that it called and
// the locations of its buffers. Its first cache line holds the fields that other ranks read in
// every step. Other ranks poll a different cache line: if they polled this one, they would take it
// away from the writer between two stores.
struct alignas(cache_line) Advert {
  std::uint64_t call;   // digest of the operation's signature
  double factor;        // factor by which a reduction scales this rank's data
  bool oversubscribed;  // true if this rank has found that ranks outnumber cores
  WindowOffset src;
  WindowOffset dst;
  alignas(cache_line)
      Signature signature;  // signature of the operation; read only to report a mismatch
};

// Counters for the jobs of a step that any rank of the host may perform. All ranks use the counters
// in the first rank's control block. The high bits of a counter hold the number of the step; the
// low bits count jobs.
using SharedWork = SharedWorkOf<std::atomic>;

struct ControlBlock {
  // The progress of the rank: the step, and the phase of that step, that the rank has reached. They
  // are combined into one number that only grows.
  alignas(cache_line) ProgressOf<std::atomic> progress;
  // This rank's adverts, which show its operation and buffers to other ranks: one for even steps
  // and one for odd steps, so that a rank that is one step ahead does not overwrite an advert that
  // others still read.
  std::array<Advert, 2> adverts;
  SharedWork work;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace atoll_collectives
