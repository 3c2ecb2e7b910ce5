// Fills the C table of a backend whose communicators are of a class derived from HostCommunicator.
// The class must provide probe() and open() as atoll_sdk::table_of() states.
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/plugin.h"
#include "collectives/communicator/host_communicator.hpp"
#include "collectives/shared_memory/memory_file.hpp"
#include "sdk/guard.hpp"
#include "sdk/table.hpp"

namespace atoll_collectives {

template <class Backend>
constexpr atoll_backend table_of(const char* name) {
  using atoll_sdk::comm_of;
  using atoll_sdk::guard;
  atoll_backend table = atoll_sdk::table_of<Backend>(name);
  table.mem_alloc = [](std::size_t bytes, std::int32_t memory, std::int32_t /*device*/,
                       void** out) {
    return guard([&] {
      if (memory != ATOLL_MEMORY_CPU || bytes == 0 || out == nullptr) {
        throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT,
                               "mem_alloc: request at least one byte of CPU memory");
      }
      *out = shared_memory::allocate(bytes);
    });
  };
  table.mem_free = [](void* memory) { return guard([&] { shared_memory::free(memory); }); };
  table.register_memory = [](atoll_comm* comm, void* memory, std::size_t bytes) {
    return guard([&] { comm_of<Backend>(comm).register_memory(memory, bytes); });
  };
  table.register_caller_memory = [](atoll_comm* comm, void* memory, std::size_t bytes,
                                    const char** slow) {
    return guard([&] { *slow = comm_of<Backend>(comm).register_caller_memory(memory, bytes); });
  };
  table.deregister_memory = [](atoll_comm* comm, void* memory) {
    return guard([&] { comm_of<Backend>(comm).deregister_memory(memory); });
  };
  table.deregister_caller_memory = table.deregister_memory;
  table.has_levels = 1;
  return table;
}

}  // namespace atoll_collectives
