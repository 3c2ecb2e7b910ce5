// A fake GPU in host memory, and a fake NCCL between threads, with just enough functions to test
// the nccl backend. The last rank to call an operation runs it on its own thread; all streams are
// the same. The fake behaves like NCCL in nonblocking mode and never completes at once: a call
// returns ncclInProgress, or success where real NCCL also does so too early, and the first status
// query after the call reports that it is in progress. Until a query reports success, the
// communicator accepts no other call. Ranks that use windows at different offsets (see
// communicator.hpp) get an error.
//
// In a program with the emulated GPU of tests/gpu/emulated, the fake NCCL runs on that GPU: an
// operation follows the order of its stream, waits there for its peers, and hangs until it is
// aborted when ranks called different operations.
#pragma once

#include <nccl.h>

namespace fake_gpu {

constexpr int devices = 8;

// Makes the next group of calls on rank `rank` of any communicator return `result`, once.
void fail_next(int rank, ncclResult_t result);
// From now on every status query returns `result`, as after a failed launch. ncclSuccess ends this.
void fail_later(ncclResult_t result);
// Resources that have not been released: communicators that were neither destroyed nor aborted,
// windows, and allocations of ncclMemAlloc.
struct Left {
  int communicators = 0;
  int windows = 0;
  int allocations = 0;
};
Left left();
int aborted();  // number of communicators that were aborted

}  // namespace fake_gpu
