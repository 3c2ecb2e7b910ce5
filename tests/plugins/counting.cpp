// The test backend `counting`: the host backend behind the interface of a GPU backend without
// reductions of 16-bit types, ordered sums and levels, as NCCL is. It counts groups of operations
// and moves no data.
#include "counting.hpp"

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>

#include "atoll/plugin_names.hpp"
#include "host_backend.hpp"

namespace {

using atoll_test::host_backend;

std::mutex mutex;
std::map<const std::byte*, std::size_t> registered;  // size of each range, by its first byte
std::atomic<std::uint64_t> groups{0}, unregistered{0};

bool is_registered(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex);
  const auto after = registered.upper_bound(begin);
  if (after == registered.begin()) return false;
  const auto& [first, size] = *std::prev(after);
  return begin + bytes <= first + size;
}

std::int32_t probe(const atoll_core* core, const atoll_group* world) {
  if (world->memory != ATOLL_MEMORY_CUDA) return 0;
  atoll_group changed = *world;
  changed.memory = ATOLL_MEMORY_CPU;
  return atoll_test::probe_wrapped(core, &changed);
}

std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t, std::int32_t memory) {
  if (memory != ATOLL_MEMORY_CUDA) return 0;
  switch (kind) {
    case ATOLL_REDUCE_SCATTER:
    case ATOLL_ALL_REDUCE:
      return dtype == ATOLL_F32 ? 1 : 0;
    case ATOLL_ALL_GATHER:
    case ATOLL_ALL_TO_ALL:
    case ATOLL_SEND:
    case ATOLL_RECV:
    case ATOLL_BARRIER:
      return 1;
    default:
      return 0;
  }
}

atoll_status open(const atoll_core* core, const atoll_group* group, atoll_comm** out) {
  if (group->deterministic != 0) return ATOLL_UNSUPPORTED;
  atoll_group changed = *group;
  changed.memory = ATOLL_MEMORY_CPU;
  return host_backend()->open(core, &changed, out);
}

atoll_status submit(atoll_comm*, atoll_operation* const* operations, std::int32_t n) {
  ++groups;
  for (std::int32_t i = 0; i < n; ++i) {
    const atoll_operation& one = *operations[i];
    if (one.kind != ATOLL_REDUCE_SCATTER) continue;
    const std::size_t bytes = one.count * atoll_abi::dtype_size(one.dtype);
    if (!is_registered(one.dst, bytes)) ++unregistered;
  }
  return ATOLL_OK;
}

atoll_status register_memory(atoll_comm*, void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  registered[static_cast<const std::byte*>(memory)] = bytes;
  return ATOLL_OK;
}

atoll_status deregister_memory(atoll_comm*, void* memory) {
  const std::lock_guard lock(mutex);
  registered.erase(static_cast<const std::byte*>(memory));
  return ATOLL_OK;
}

atoll_status async_error(atoll_comm*) { return ATOLL_OK; }

}  // namespace

extern "C" __attribute__((visibility("default"))) void atoll_test_counts(
    atoll_test::Counts* counts) {
  *counts = {groups, unregistered};
}

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  return atoll_test::wrap_host("counting", [](atoll_backend& backend) {
    atoll_test::remove_memory_and_split(backend);
    backend.has_levels = 0;
    backend.probe = probe;
    backend.capability = capability;
    backend.open = open;
    backend.submit = submit;
    backend.async_error = async_error;
    backend.register_memory = register_memory;
    backend.deregister_memory = deregister_memory;
  });
}
