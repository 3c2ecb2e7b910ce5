// Loads the host backend, which the test backends wrap.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "atoll/plugin.h"

namespace atoll_test {

// Returns the table of the host backend, or null if its library cannot be loaded.
inline const atoll_backend* host_backend() {
  static const atoll_backend* const table = []() -> const atoll_backend* {
    void* handle = dlopen(ATOLL_PLUGIN_HOST, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return nullptr;
    const auto entry =
        reinterpret_cast<atoll_backend_entry_fn>(dlsym(handle, "atoll_backend_entry_v1"));
    return entry ? entry() : nullptr;
  }();
  return table;
}

inline std::int32_t probe_wrapped(const atoll_core* core, const atoll_group* world) {
  // A preference of 1 is the lowest, so the library uses a test backend only if it is requested.
  return host_backend()->probe(core, world) > 0 ? 1 : 0;
}

// Returns a copy of the table of the host backend with another name, after change(copy); null
// without a host backend.
template <class Change>
const atoll_backend* wrap_host(const char* name, const Change& change) {
  if (!host_backend()) return nullptr;
  static const atoll_backend wrapped = [&] {
    atoll_backend table = *host_backend();
    table.name = name;
    table.probe = probe_wrapped;
    change(table);
    return table;
  }();
  return &wrapped;
}

// Removes the functions that need host memory, or a communicator of the host backend itself.
inline void remove_memory_and_split(atoll_backend& backend) {
  backend.split = nullptr;
  backend.mem_alloc = nullptr;
  backend.mem_free = nullptr;
  backend.register_memory = nullptr;
  backend.deregister_memory = nullptr;
  backend.register_caller_memory = nullptr;
  backend.register_own_memory = nullptr;
  backend.deregister_caller_memory = nullptr;
}

}  // namespace atoll_test
