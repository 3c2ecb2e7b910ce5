// Defines the C table of the host backend.
#include "atoll/plugin.h"
#include "collectives/shared_memory/memory_file.hpp"
#include "host/comm.hpp"
#include "sdk/table.hpp"

namespace {

using atoll_host_backend::Comm;
using atoll_sdk::comm_of;
using atoll_sdk::guard;

atoll_status mem_alloc(std::size_t bytes, std::int32_t memory, std::int32_t /*device*/,
                       void** out) {
  return guard([&] {
    if (memory != ATOLL_MEMORY_HOST || bytes == 0 || out == nullptr) {
      throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT,
                             "mem_alloc: request at least one byte of host memory");
    }
    *out = atoll_collectives::shared_memory::allocate(bytes);
  });
}

atoll_status mem_free(void* memory) {
  return guard([&] { atoll_collectives::shared_memory::free(memory); });
}

atoll_status register_memory(atoll_comm* comm, void* memory, std::size_t bytes) {
  return guard([&] { comm_of<Comm>(comm).register_memory(memory, bytes); });
}

atoll_status register_caller_memory(atoll_comm* comm, void* memory, std::size_t bytes,
                                    const char** slow) {
  return guard([&] { *slow = comm_of<Comm>(comm).register_caller_memory(memory, bytes); });
}

atoll_status deregister_memory(atoll_comm* comm, void* memory) {
  return guard([&] { comm_of<Comm>(comm).deregister_memory(memory); });
}

constexpr atoll_backend table = [] {
  atoll_backend backend = atoll_sdk::table_of<Comm>("host");
  backend.mem_alloc = mem_alloc;
  backend.mem_free = mem_free;
  backend.register_memory = register_memory;
  backend.deregister_memory = deregister_memory;
  backend.register_caller_memory = register_caller_memory;
  backend.deregister_caller_memory = deregister_memory;
  backend.has_levels = 1;
  return backend;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &table;
}
