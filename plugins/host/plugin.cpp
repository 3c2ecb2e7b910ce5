// The backend's table: the C boundary, and nothing else.
#include <memory>

#include "atoll/plugin.h"
#include "host/comm.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"
#include "collectives/shared_memory.hpp"

struct atoll_comm {
  atoll_comm(const atoll_host& host, const atoll_group& group) : comm(host, group) {}
  atoll_sdk::host::Comm comm;
};

namespace {

using atoll_sdk::guard;

constexpr std::int32_t preference = 100;

std::int32_t probe(const atoll_host* /*host*/, const atoll_group* /*world*/) { return preference; }

std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) {
  if (memory != ATOLL_MEMORY_HOST || kind < ATOLL_BARRIER || kind > ATOLL_REDUCE_SCATTER_V)
    return 0;
  if (kind == ATOLL_BARRIER) return 1;
  if (atoll_sdk::dtype_size(dtype) == 0) return 0;
  return !atoll_sdk::reduces(kind) || (op >= ATOLL_SUM && op <= ATOLL_MAX) ? 1 : 0;
}

atoll_status open(const atoll_host* host, const atoll_group* group, atoll_comm** out) {
  return guard([&] {
    if (host == nullptr || group == nullptr || out == nullptr) {
      throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "open: NULL argument");
    }
    *out = std::make_unique<atoll_comm>(*host, *group).release();
  });
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
  return guard([&] {
    if (comm == nullptr || n < 0 || (n > 0 && operations == nullptr)) {
      throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "submit: NULL argument");
    }
    comm->comm.submit({operations, static_cast<std::size_t>(n)});
  });
}

void abort_comm(atoll_comm* comm) {
  if (comm != nullptr) comm->comm.abort();
}

void close(atoll_comm* comm) { const std::unique_ptr<atoll_comm> owned(comm); }

atoll_status mem_alloc(std::size_t bytes, std::int32_t memory, std::int32_t /*device*/,
                       void** out) {
  return guard([&] {
    if (memory != ATOLL_MEMORY_HOST || bytes == 0 || out == nullptr) {
      throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "mem_alloc: host memory of at least a byte");
    }
    *out = atoll_sdk::shared_memory::allocate(bytes);
  });
}

atoll_status mem_free(void* memory) {
  return guard([&] { atoll_sdk::shared_memory::free(memory); });
}

atoll_status register_memory(atoll_comm* comm, void* memory, std::size_t bytes) {
  return guard([&] { comm->comm.register_memory(memory, bytes); });
}

atoll_status deregister_memory(atoll_comm* comm, void* memory) {
  return guard([&] { comm->comm.deregister_memory(memory); });
}

const char* last_error(const atoll_comm* /*comm*/) { return atoll_sdk::last_error(); }

void shutdown(std::int32_t /*failed*/) {}  // nothing outlives a communicator

constexpr atoll_backend table = {
    sizeof(atoll_backend),
    ATOLL_ABI_MAJOR,
    ATOLL_ABI_MINOR,
    "host",
    &probe,
    &capability,
    &open,
    &submit,
    &abort_comm,
    &close,
    &last_error,
    &shutdown,
    nullptr,  // async_error: submit() returns when all is done
    nullptr,  // split
    &mem_alloc,
    &mem_free,
    &register_memory,
    &deregister_memory,
    1,        // has_levels
    nullptr,  // transports
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  return &table;
}
