// The test backend `nothing`: the host backend without data transfer. Barriers work, and every
// other operation completes at once, so a training step takes only the time of its compute.
//
// The results of a gather must still be plausible, because they contain numbers that control or
// measure a step, and weights, whose values affect the speed of matrix products. So each gather
// copies the slice of this rank into the slices of all ranks. For small gathers this happens every
// time, and for large gathers only the first time for each buffer.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "atoll/plugin_names.hpp"
#include "host_backend.hpp"

namespace {

using atoll_test::host_backend;

constexpr std::uint64_t small = 4096;  // largest number of bytes per slice in a small gather

struct Communicator {
  std::size_t ranks = 1;
  std::set<const void*> filled;  // destinations that a large gather has already filled once
};
std::mutex mutex;
std::map<atoll_comm*, Communicator> comms;

atoll_status open(const atoll_core* core, const atoll_group* group, atoll_comm** out) {
  const atoll_status status = host_backend()->open(core, group, out);
  if (status != ATOLL_OK) return status;
  const std::lock_guard lock(mutex);
  comms[*out] = {static_cast<std::size_t>(group->nranks), {}};
  return ATOLL_OK;
}

void close(atoll_comm* comm) {
  {
    const std::lock_guard lock(mutex);
    comms.erase(comm);
  }
  host_backend()->close(comm);
}

void stand_in(atoll_comm* comm, const atoll_operation& operation) {
  const std::size_t bytes = operation.count * atoll_abi::dtype_size(operation.dtype);
  std::size_t ranks = 0;
  {
    const std::lock_guard lock(mutex);
    Communicator& known = comms.at(comm);
    if (bytes > small && !known.filled.insert(operation.dst).second) return;
    ranks = known.ranks;
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    std::memmove(static_cast<std::byte*>(operation.dst) + r * bytes, operation.src, bytes);
  }
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) {
    if (operations[i]->kind == ATOLL_ALL_GATHER) stand_in(comm, *operations[i]);
    if (operations[i]->kind != ATOLL_BARRIER) continue;
    const atoll_status status = host_backend()->submit(comm, &operations[i], 1);
    if (status != ATOLL_OK) return status;
  }
  return ATOLL_OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  return atoll_test::wrap_host("nothing", [](atoll_backend& backend) {
    backend.open = open;
    backend.close = close;
    backend.submit = submit;
  });
}
