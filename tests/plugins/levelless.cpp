// The test backend `levelless`: the host backend without the two-level capability, so that the
// library runs operations in two levels by a fallback.
#include "host_backend.hpp"

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  if (!atoll_test::host_backend()) return nullptr;
  static const atoll_backend table = [] {
    atoll_backend wrapped = *atoll_test::host_backend();
    wrapped.name = "levelless";
    wrapped.probe = atoll_test::probe_wrapped;
    wrapped.has_levels = 0;
    return wrapped;
  }();
  return &table;
}
