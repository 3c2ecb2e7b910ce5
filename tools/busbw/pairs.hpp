// Measures the bandwidth from every rank to every other rank.
#pragma once

#include "job.hpp"
#include "options.hpp"
#include "verdict.hpp"

namespace busbw {

struct PairReport {
  std::uint64_t bytes = 0;  // bytes of a message
  Matrix gbyte_s = {};
  PairVerdict verdict = {};
  bool is_judged = true;  // false when a host has more ranks than cores
};

// Measures the bandwidth between all ranks, in the order of the mesh. While an ordered pair is
// measured, its hosts do nothing else. After warm-ups, the sender sends iterations x batch messages
// of -e bytes and waits for the receiver's answer; the best of three trials counts. Prints on rank
// 0. Collective; all ranks get the same result.
PairReport measure_pairs(Job& job, const Options& options);

}  // namespace busbw
