// The table of the nccl backend: exceptions end here.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "atoll/plugin.h"
#include "comm.hpp"
#include "log.hpp"
#include "sdk/guard.hpp"

struct atoll_comm {
  std::unique_ptr<atoll_sdk::nccl::Comm> comm;
};

namespace atoll_sdk::nccl {
namespace {

// Which GPU memory of mem_alloc is on. The runtime would tell only with a context on the thread's
// own device, which need not be one that this process uses.
class Owners {
 public:
  void add(void* memory, int device) {
    const std::lock_guard lock(mutex_);
    devices_[memory] = device;
  }
  int of(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(memory);
    if (found == devices_.end()) throw Error(ATOLL_INVALID_ARGUMENT, "memory of another backend");
    return found->second;
  }
  void remove(void* memory) {
    const std::lock_guard lock(mutex_);
    devices_.erase(memory);
  }

 private:
  std::mutex mutex_;
  std::map<void*, int> devices_;
};
Owners& owners() {
  static auto* const one = new Owners;  // buffers may outlive main
  return *one;
}

// Before all others where there is a GPU and the memory is its own.
constexpr std::int32_t usual_preference = 100;

void probe_here(const atoll_group& world) {
  if (world.memory != ATOLL_MEMORY_CUDA) {
    throw Error(ATOLL_UNSUPPORTED, "takes memory of GPUs only");
  }
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaSuccess && devices > 0) return;
  cudaGetLastError();
  throw Error(ATOLL_UNSUPPORTED, found == cudaSuccess
                                     ? std::string("no device")
                                     : std::string("no device: ") + cudaGetErrorString(found));
}

int32_t probe(const atoll_host*, const atoll_group* world) {
  return guard([&] { probe_here(*world); }) == ATOLL_OK ? usual_preference : 0;
}

atoll_status open(const atoll_host* host, const atoll_group* group, atoll_comm** out) {
  return guard([&] {
    auto handle = std::make_unique<atoll_comm>();
    handle->comm = Comm::open(*host, *group);
    *out = handle.release();
  });
}

atoll_status split(atoll_comm* comm, const atoll_group* group, atoll_comm** out) {
  return guard([&] {
    auto handle = std::make_unique<atoll_comm>();
    handle->comm = comm->comm->split(group);
    *out = handle->comm ? handle.release() : nullptr;
  });
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, int32_t n) {
  return guard([&] {
    if (n > 0) comm->comm->submit(operations, n);
  });
}

void abort(atoll_comm* comm) { comm->comm->abort(); }

void close(atoll_comm* comm) { const std::unique_ptr<atoll_comm> owned(comm); }

const char* last_error_of(const atoll_comm*) { return last_error(); }

void shutdown(int32_t) {}

atoll_status async_error(atoll_comm* comm) {
  return guard([&] { comm->comm->check_async(); });
}

atoll_status mem_alloc(size_t bytes, int32_t memory, int32_t device, void** out) {
  return guard([&] {
    if (memory != ATOLL_MEMORY_CUDA) {
      throw Error(ATOLL_UNSUPPORTED, "the nccl backend has memory of GPUs only");
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
    const Current current(owners().of(memory));
    owners().remove(memory);  // before others can be given the address
    check(ncclMemFree(memory), "ncclMemFree");
  });
}

atoll_status register_memory(atoll_comm* comm, void* memory, size_t bytes) {
  return guard([&] { comm->comm->register_window(memory, bytes); });
}

const char* transports_text(atoll_comm*) {
  thread_local std::string text;
  return guard([&] { text = transports(); }) == ATOLL_OK ? text.c_str() : nullptr;
}

constexpr atoll_backend table = [] {
  atoll_backend backend{};
  backend.size = sizeof(atoll_backend);
  backend.abi_major = ATOLL_ABI_MAJOR;
  backend.abi_minor = ATOLL_ABI_MINOR;
  backend.name = "nccl";
  backend.probe = probe;
  backend.capability = nccl::capability;
  backend.open = open;
  backend.submit = submit;
  backend.abort = abort;
  backend.close = close;
  backend.last_error = last_error_of;
  backend.shutdown = shutdown;
  backend.async_error = async_error;
  backend.split = split;
  backend.mem_alloc = mem_alloc;
  backend.mem_free = mem_free;
  backend.register_memory = register_memory;
  backend.transports = transports_text;
  return backend;
}();

}  // namespace
}  // namespace atoll_sdk::nccl

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &atoll_sdk::nccl::table;
}
