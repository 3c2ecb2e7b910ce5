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

// Measures all ranks, in the order of the mesh. Each ordered pair is alone on its hosts: warm-ups,
// then iterations x batch messages of -e bytes in one direction until the receiver's answer is
// back; the best of three trials counts. Prints on rank 0. Collective; all ranks get the same
// result.
PairReport measure_pairs(Job& job, const Options& options);

}  // namespace busbw
