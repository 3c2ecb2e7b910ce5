// The backend `nothing`: the host backend, but data stays where it is. Barriers meet, and everything
// else is done at once: what remains of a step is its compute.
#include <cstdint>

#include "host_backend.hpp"

namespace {

using atoll_test::host_backend;

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) {
    if (operations[i]->kind != ATOLL_BARRIER) continue;
    const atoll_status status = host_backend()->submit(comm, &operations[i], 1);
    if (status != ATOLL_OK) return status;
  }
  return ATOLL_OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  if (!host_backend()) return nullptr;
  static const atoll_backend table = [] {
    atoll_backend wrapped = *host_backend();
    wrapped.name = "nothing";
    wrapped.probe = atoll_test::probe_wrapped;
    wrapped.submit = submit;
    return wrapped;
  }();
  return &table;
}
