// Defines the C table of the nccl backend.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "communicator.hpp"
#include "log.hpp"
#include "sdk/backend.hpp"

namespace atoll_nccl {
namespace {

// Records the device of each mem_alloc() allocation. The CUDA runtime could report the device as
// well, but would first create a context on the thread's current device, even if this process does
// not use that device.
class Owners {
 public:
  void add(void* memory, int device) {
    const std::lock_guard lock(mutex_);
    devices_[memory] = device;
  }
  // Removes the record of an allocation and returns its device.
  int remove(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto record = devices_.extract(memory);
    if (record.empty())
      throw Error(ATOLL_INVALID_ARGUMENT,
                  "mem_free: the nccl backend did not allocate this memory");
    return record.mapped();
  }

 private:
  std::mutex mutex_;
  std::map<void*, int> devices_;
};
Owners& owners() {
  static auto* const one = new Owners;  // never destroyed, because buffers may outlive main()
  return *one;
}

atoll_status split(atoll_comm* comm, const atoll_group* group, atoll_comm** out) {
  return guard([&] { *out = handle_of(comm_of<NcclCommunicator>(comm).split(group)); });
}

atoll_status async_error(atoll_comm* comm) {
  return guard([&] { comm_of<NcclCommunicator>(comm).check_async(); });
}

atoll_status mem_alloc(size_t bytes, int32_t memory, int32_t device, void** out) {
  return guard([&] {
    if (memory != ATOLL_MEMORY_CUDA) {
      throw Error(ATOLL_UNSUPPORTED, "the nccl backend allocates GPU memory only");
    }
    const Current current(device);
    void* data = nullptr;
    check(ncclMemAlloc(&data, bytes), "ncclMemAlloc");
    std::unique_ptr<void, decltype(&ncclMemFree)> owned(data, ncclMemFree);
    check(cudaMemset(data, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    owners().add(data, device);
    *out = owned.release();
  });
}

atoll_status mem_free(void* memory) {
  return guard([&] {
    // Removes the record before ncclMemFree() frees the memory, because another thread may then get
    // the same address.
    const int device = owners().remove(memory);
    try {
      const Current current(device);
      check(ncclMemFree(memory), "ncclMemFree");
    } catch (...) {
      owners().add(memory, device);
      throw;
    }
  });
}

atoll_status register_memory(atoll_comm* comm, void* memory, size_t bytes) {
  return guard([&] { comm_of<NcclCommunicator>(comm).register_window(memory, bytes); });
}

atoll_status register_caller_memory(atoll_comm* comm, void* memory, size_t bytes,
                                    const char** slow) {
  return guard([&] {
    comm_of<NcclCommunicator>(comm).register_buffer(memory, bytes);
    *slow =
        "NCCL registers this memory with its networks and, where it can, with other GPUs, but "
        "its symmetric kernels need memory from allocate()";
  });
}

atoll_status register_own_memory(atoll_comm* comm, void* memory, size_t bytes) {
  return guard([&] { comm_of<NcclCommunicator>(comm).register_buffer(memory, bytes); });
}

atoll_status deregister_caller_memory(atoll_comm* comm, void* memory) {
  return guard([&] { comm_of<NcclCommunicator>(comm).deregister_buffer(memory); });
}

const char* transports_text(atoll_comm*) {
  thread_local std::string text;
  const atoll_status status = guard([&] {
    text = transports();
    if (const auto bytes = NcclCommunicator::held_bytes())
      text += fmt::format("device_bytes={}\n", *bytes);
  });
  return status == ATOLL_OK ? text.c_str() : nullptr;
}

constexpr atoll_backend table = [] {
  atoll_backend backend = table_of<NcclCommunicator>("nccl");
  backend.async_error = async_error;
  backend.split = split;
  backend.mem_alloc = mem_alloc;
  backend.mem_free = mem_free;
  backend.register_memory = register_memory;
  backend.register_caller_memory = register_caller_memory;
  backend.deregister_caller_memory = deregister_caller_memory;
  backend.register_own_memory = register_own_memory;
  backend.transports = transports_text;
  return backend;
}();

}  // namespace
}  // namespace atoll_nccl

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &atoll_nccl::table;
}
