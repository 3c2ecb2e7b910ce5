// The backend `delay`: the host backend, but chosen operations take longer. atoll_test_plant says
// which; see planted_delay.hpp.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "atoll/plugin.h"

namespace {

std::atomic<std::int32_t> planted_kind{-1};
std::atomic<std::uint64_t> planted_every{1}, planted_which{0};
std::atomic<std::int64_t> planted_ms{0};

const atoll_backend* host_backend() {
  static const atoll_backend* const table = []() -> const atoll_backend* {
    void* handle = dlopen(ATOLL_PLUGIN_HOST, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return nullptr;
    const auto entry =
        reinterpret_cast<atoll_backend_entry_fn>(dlsym(handle, "atoll_backend_entry_v1"));
    return entry ? entry() : nullptr;
  }();
  return table;
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) {
    const atoll_operation& operation = *operations[i];
    if (operation.kind == planted_kind && operation.sequence % planted_every == planted_which) {
      std::this_thread::sleep_for(std::chrono::milliseconds(planted_ms));
    }
  }
  return host_backend()->submit(comm, operations, n);
}

std::int32_t probe(const atoll_host* host, const atoll_group* world) {
  return host_backend()->probe(host, world) > 0 ? 1 : 0;  // never chosen unless asked for
}

}  // namespace

// From now on an operation of `kind` whose sequence number is `which` modulo `every` sleeps for
// `ms` before it starts, on the thread of its stream. kind -1: none.
extern "C" __attribute__((visibility("default"))) void atoll_test_plant(std::int32_t kind,
                                                                        std::uint64_t every,
                                                                        std::uint64_t which,
                                                                        std::int64_t ms) {
  planted_every = every;
  planted_which = which;
  planted_ms = ms;
  planted_kind = kind;
}

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  if (!host_backend()) return nullptr;
  static const atoll_backend table = [] {
    atoll_backend wrapped = *host_backend();
    wrapped.name = "delay";
    wrapped.probe = probe;
    wrapped.submit = submit;
    return wrapped;
  }();
  return &table;
}
