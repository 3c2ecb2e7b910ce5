// A fake GPU in CPU memory, and a fake NCCL between threads, with just enough functions to test
// the nccl backend. The last rank to call an operation runs the operation on its own thread; all
// streams are the same. The fake NCCL behaves like NCCL in nonblocking mode. A call never completes
// at once: it returns ncclInProgress, or success where real NCCL also returns success too early,
// and the first status query after the call reports that the call is in progress. Until a query
// reports success, the communicator accepts no other call. Ranks that use windows at different
// offsets (see communicator.hpp) get an error.
//
// In a program with the emulated GPU of tests/gpu/emulated, the fake NCCL runs on that GPU. An
// operation then follows the order of its stream and waits there for the calls of the other ranks.
// If ranks call different operations, they hang until they are aborted.
#pragma once

#include <nccl.h>

namespace fake_gpu {

constexpr int devices = 8;

// Makes the next group of calls on rank `rank` of any communicator return `result`, once.
void fail_next(int rank, ncclResult_t result);
// Makes all further status queries return `result`, as after a failed launch, until this function
// is called with ncclSuccess.
void fail_later(ncclResult_t result);
// Sets the NCCL_VERSION_CODE of the fake NCCL, which is initially that of its header. As with NCCL,
// versions before 2.28 refuse NCCL_CTA_POLICY_ZERO.
void set_version(int code);
// Sets whether ncclCommWindowRegister creates windows; initially it does. NCCL 2.29 and later
// return success and a null window if a communicator has no symmetric memory.
void give_windows(bool gives);
// Numbers of resources that have not been released: communicators that were neither destroyed nor
// aborted, registered windows, and allocations of ncclMemAlloc.
struct Left {
  int communicators = 0;
  int windows = 0;
  int allocations = 0;
};
Left left();
int aborted();  // returns how many communicators have been aborted
// Returns ncclConfig_t::CTAPolicy of the communicator that was opened last with this name.
int policy(const char* name);
// Returns whether copy engines have run a collective of the communicator that was opened last with
// this name. As with NCCL, they run all_gathers and all_to_alls of memory in windows, if the policy
// is NCCL_CTA_POLICY_ZERO.
bool used_copy_engines(const char* name);

}  // namespace fake_gpu
