// Bandwidth from every rank to every other one.
#pragma once

#include "job.hpp"
#include "options.hpp"
#include "verdict.hpp"

namespace busbw {

struct PairReport {
  std::uint64_t bytes = 0;  // of a message
  Matrix gbyte_s = {};
  PairVerdict verdict = {};
  bool is_judged = true;  // false: ranks of a host outnumber its cores
};

// Over all ranks, in the order of the mesh. Each ordered pair alone on its hosts: warm-ups, then
// iterations x batch messages of -e bytes one way, timed until the receiver's answer is back, the
// best of three times. Prints on rank 0. Collective; the result is the same on all ranks.
PairReport measure_pairs(Job& job, const Options& options);

}  // namespace busbw
