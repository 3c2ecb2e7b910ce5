// The table of the mpi backend: exceptions end here.
#include <memory>

#include "atoll/plugin.h"
#include "comm.hpp"
#include "sdk/guard.hpp"
#include "session.hpp"

struct atoll_comm {
  std::unique_ptr<atoll_sdk::mpi::Comm> comm;
};

namespace atoll_sdk::mpi {
namespace {

int32_t probe(const atoll_host*, const atoll_group* world) {
  int32_t preference = 0;
  const atoll_status status = guard([&] {
    const Session::Prospect prospect = Session::probe(*world);
    preference = prospect.preference;
    if (preference == 0) throw Error(ATOLL_UNSUPPORTED, prospect.reason);
  });
  return status == ATOLL_OK ? preference : 0;
}

atoll_status open(const atoll_host* host, const atoll_group* group, atoll_comm** out) {
  return guard([&] {
    auto handle = std::make_unique<atoll_comm>();
    handle->comm = Comm::open(*host, *group);
    *out = handle.release();
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

void shutdown(int32_t failed) {
  using Ending = Session::Ending;
  guard([&] { Session::get().finish(failed != 0 ? Ending::failed : Ending::orderly); });
}

constexpr atoll_backend table = [] {
  atoll_backend backend{};
  backend.size = sizeof(atoll_backend);
  backend.abi_major = ATOLL_ABI_MAJOR;
  backend.abi_minor = ATOLL_ABI_MINOR;
  backend.name = "mpi";
  backend.probe = probe;
  backend.capability = mpi::capability;
  backend.open = open;
  backend.submit = submit;
  backend.abort = abort;
  backend.close = close;
  backend.last_error = last_error_of;
  backend.shutdown = shutdown;
  return backend;
}();

}  // namespace
}  // namespace atoll_sdk::mpi

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &atoll_sdk::mpi::table;
}
