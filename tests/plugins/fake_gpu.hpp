// A GPU whose memory is the host's, and an NCCL between threads: enough of both for the nccl
// backend, to test what it does around them. Operations run when the last rank has called them, on
// its thread; streams are all one. As NCCL in its nonblocking mode it is never done at once: a call
// returns ncclInProgress, or success where NCCL's own does so too early, and the first question
// after it finds it in progress; until one does not, it takes no other call.
// Ranks that use windows at different places (communicator.hpp) are refused.
//
// In a program with the emulated GPU of tests/gpu/emulated the NCCL is on that one: what is
// launched on a stream is in its order, waits there for its peers, and hangs until it is aborted
// when they differ.
#pragma once

#include <nccl.h>

namespace fake_gpu {

constexpr int devices = 8;

// The next group of calls on rank `rank` of any communicator ends with this, once.
void fail_next(int rank, ncclResult_t result);
// From now on every question is answered so, until it is ncclSuccess: a failure behind a launch.
void fail_later(ncclResult_t result);
// Communicators that are neither destroyed nor aborted, windows, and bytes of ncclMemAlloc.
struct Left {
  int communicators = 0;
  int windows = 0;
  int allocations = 0;
};
Left left();
int aborted();  // communicators, in all

}  // namespace fake_gpu
