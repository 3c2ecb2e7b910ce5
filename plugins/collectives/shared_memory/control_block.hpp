// The part of a rank's inbox through which the ranks of a host synchronize. Its rank writes it, and
// all ranks of the host read it; only the work counters are written by all.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/signature.hpp"

namespace atoll_collectives {

constexpr std::size_t cache_line = 64;

// The position of a buffer in a registered window, which other processes can map.
struct WindowOffset {
  std::int64_t window = -1;  // number of the registration; -1: not in a registered window
  std::uint64_t offset = 0;
};

// What a rank advertises when it arrives at a step: its call and where its buffers are. The first
// cache line holds what other ranks read in every step. It is separate from the line that they
// poll, because pollers would take that line away between two stores.
struct alignas(cache_line) Advert {
  std::uint64_t call;   // digest of the signature
  double factor;        // factor of a sum
  bool oversubscribed;  // this rank sees more ranks than cores
  WindowOffset src;
  WindowOffset dst;
  alignas(cache_line) Signature signature;  // read only to report a mismatch
};

// Counters of jobs that any rank of the host may perform in a step. All ranks use the counters of
// the first rank. The high bits hold the number of the step, the low bits count jobs.
struct SharedWork {
  alignas(cache_line) std::atomic<std::uint64_t> claimed;
  alignas(cache_line) std::atomic<std::uint64_t> done;
};

struct ControlBlock {
  // Number of the step and phase within it, as one number that only grows.
  alignas(cache_line) std::atomic<std::uint64_t> reached;
  // Adverts of even and odd steps, so that a rank one step ahead does not disturb readers.
  std::array<Advert, 2> adverts;
  SharedWork work;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace atoll_collectives
