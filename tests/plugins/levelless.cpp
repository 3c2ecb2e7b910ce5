// The test backend `levelless`: the host backend without the two-level capability, all_to_all_v and
// gather_v, so that the library runs operations in two levels and these two by fallbacks.
#include "host_backend.hpp"

namespace {

std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) {
  if (kind == ATOLL_ALL_TO_ALL_V || kind == ATOLL_GATHER_V) return 0;
  return atoll_test::host_backend()->capability(kind, dtype, op, memory);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  if (!atoll_test::host_backend()) return nullptr;
  static const atoll_backend table = [] {
    atoll_backend wrapped = *atoll_test::host_backend();
    wrapped.name = "levelless";
    wrapped.probe = atoll_test::probe_wrapped;
    wrapped.capability = capability;
    wrapped.has_levels = 0;
    return wrapped;
  }();
  return &table;
}
