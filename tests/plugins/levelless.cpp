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
  return atoll_test::wrap_host("levelless", [](atoll_backend& backend) {
    backend.capability = capability;
    backend.has_levels = 0;
  });
}
