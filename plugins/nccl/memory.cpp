// Keeps a list of the open communicators, and reports the GPU memory that NCCL holds for them.
#include <dlfcn.h>

#include <set>

#include "communicator.hpp"
#include "log.hpp"

namespace atoll_nccl {
namespace {

// NCCL 2.29.7 added ncclCommMemStats(), whose second argument is an enum. dlsym() looks it up at
// run time, because this backend also runs with older versions. glibc finds it although core loads
// backends with RTLD_LOCAL, because it also searches the libraries to which the caller is linked.
using MemStats = ncclResult_t (*)(ncclComm_t, int, std::uint64_t*);
constexpr int all_memory = 3;  // value of ncclStatGpuMemTotal

struct Open {
  std::mutex mutex;
  std::set<NcclCommunicator*> comms;
};

Open& open_comms() {
  static auto* const one = new Open;  // never destroyed, because communicators may outlive main()
  return *one;
}

}  // namespace

void NcclCommunicator::note_open() {
  const std::lock_guard lock(open_comms().mutex);
  open_comms().comms.insert(this);
}

void NcclCommunicator::note_closed() noexcept {
  const std::lock_guard lock(open_comms().mutex);
  open_comms().comms.erase(this);
  if (open_comms().comms.empty()) forget_log();
}

std::optional<std::uint64_t> NcclCommunicator::held_bytes() {
  static const auto ask = reinterpret_cast<MemStats>(::dlsym(RTLD_DEFAULT, "ncclCommMemStats"));
  if (ask == nullptr) return std::nullopt;
  std::optional<std::uint64_t> sum;
  const std::lock_guard lock(open_comms().mutex);
  for (NcclCommunicator* const comm : open_comms().comms) {
    const std::lock_guard one_caller(comm->calls_);
    std::uint64_t bytes = 0;
    // Skipped, because NCCL reports an error while a communicator opens, and after a failure.
    if (comm->broken_ || comm->nccl_ == nullptr) continue;
    if (ask(comm->nccl_, all_memory, &bytes) == ncclSuccess) sum = sum.value_or(0) + bytes;
  }
  return sum;
}

}  // namespace atoll_nccl
