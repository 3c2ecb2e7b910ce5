// A rank's place on the board of its host, in shared memory: what it is about to do, and how far it
// is. The rank alone writes there, and all ranks of the host read; shared work is the exception.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/signature.hpp"

namespace atoll_sdk {

constexpr std::size_t cache_line = 64;

// Where a buffer is, as other processes can find it.
struct Place {
  std::int64_t window = -1;  // number of the registration; -1: not in shared memory
  std::uint64_t offset = 0;
};

// What other ranks read in every step is in the first line of it. (On the line of the mark it would
// cost more: those who poll that line would take it away between two stores.)
struct alignas(cache_line) Post {
  std::uint64_t call;  // digest of the signature
  double factor;       // of a sum
  bool crowded;        // ranks outnumber cores, as this rank sees them
  Place src;
  Place dst;
  alignas(cache_line) Signature signature;  // read to tell of a disagreement only
};

// Work of one step that any rank of the host may do; on the seat of the first of them, written by
// all. Both count jobs, below the number of their step.
struct SharedWork {
  alignas(cache_line) std::atomic<std::uint64_t> claimed;
  alignas(cache_line) std::atomic<std::uint64_t> done;
};

struct Seat {
  // Number of the step on the board, and how far in it: only ever grows.
  alignas(cache_line) std::atomic<std::uint64_t> mark;
  // Of even and odd steps: a rank that is one step ahead does not disturb those that still read.
  std::array<Post, 2> posts;
  SharedWork work;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace atoll_sdk
