// The test backend `launching`: the host backend behind the interface of a GPU backend. submit()
// enqueues operations on their stream, which is a StreamBackend of tests/launching_device.hpp, and
// returns. The stream sees no errors: the backend keeps a failure until async_error() returns it,
// and an aborted operation looks complete. In a communicator named "broken", the first operation
// fails after its launch.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/backend.hpp"
#include "host_backend.hpp"

struct atoll_comm {
  atoll_comm* inner = nullptr;  // communicator of the host backend, which runs the operations
  bool broken = false;
  std::atomic<bool> aborted{false};
  std::atomic<atoll_status> failure{ATOLL_OK};
};

namespace {

using atoll_test::host_backend;

// A timeout in nanoseconds that never expires.
constexpr std::int64_t forever = std::int64_t{1} << 60;

atoll_group as_host(const atoll_group& group) {
  atoll_group changed = group;
  changed.memory = ATOLL_MEMORY_CPU;
  return changed;
}

int32_t probe(const atoll_core* core, const atoll_group* world) {
  if (world->memory != ATOLL_MEMORY_CUDA) return 0;
  const atoll_group changed = as_host(*world);
  return atoll_test::probe_wrapped(core, &changed);
}

int32_t capability(int32_t kind, int32_t dtype, int32_t op, int32_t memory) {
  return memory == ATOLL_MEMORY_CUDA ? host_backend()->capability(kind, dtype, op, ATOLL_MEMORY_CPU)
                                     : 0;
}

atoll_status open(const atoll_core* core, const atoll_group* group, atoll_comm** out) {
  const atoll_group changed = as_host(*group);
  auto comm = std::make_unique<atoll_comm>();
  comm->broken = std::string_view(group->name) == "broken";
  const atoll_status status = host_backend()->open(core, &changed, &comm->inner);
  if (status == ATOLL_OK) *out = comm.release();
  return status;
}

// Runs operations in the order of their stream. Like a kernel on a GPU, it reports no error; after
// an error it ends only when the communicator is aborted.
void run(atoll_comm& comm, std::vector<atoll_operation> operations) {
  atoll_status status = ATOLL_BACKEND;
  if (!comm.broken) {
    std::vector<atoll_operation*> pointers;
    for (atoll_operation& operation : operations) pointers.push_back(&operation);
    status =
        host_backend()->submit(comm.inner, pointers.data(), static_cast<int32_t>(pointers.size()));
  }
  if (status == ATOLL_OK) return;
  comm.failure = status;
  while (!comm.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, int32_t n) {
  if (comm->aborted) return ATOLL_ABORTED;
  std::vector<atoll_operation> copies;
  for (int32_t i = 0; i < n; ++i) {
    copies.push_back(*operations[i]);
    copies.back().memory = ATOLL_MEMORY_CPU;
    copies.back().stream = nullptr;
    copies.back().timeout_ns = forever;  // no timeout, because a kernel on a GPU has none either
  }
  auto* const stream = static_cast<atoll::StreamBackend*>(operations[0]->stream);
  stream->enqueue([comm, copies = std::move(copies)] { run(*comm, copies); });
  return ATOLL_OK;
}

void abort(atoll_comm* comm) {
  comm->aborted = true;
  host_backend()->abort(comm->inner);
}

void close(atoll_comm* comm) {
  host_backend()->close(comm->inner);
  delete comm;
}

const char* last_error(const atoll_comm* comm) {
  if (comm != nullptr && comm->broken) return "the kernel was lost";
  return host_backend()->last_error(comm == nullptr ? nullptr : comm->inner);
}

atoll_status async_error(atoll_comm* comm) { return comm->failure; }

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  return atoll_test::wrap_host("launching", [](atoll_backend& backend) {
    atoll_test::remove_memory_and_split(backend);
    backend.probe = probe;
    backend.capability = capability;
    backend.open = open;
    backend.submit = submit;
    backend.abort = abort;
    backend.close = close;
    backend.last_error = last_error;
    backend.async_error = async_error;
  });
}
