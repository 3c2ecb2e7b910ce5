// Defines the C table of the mpi backend.
#include "communicator.hpp"
#include "sdk/backend.hpp"
#include "session.hpp"

namespace atoll_mpi {
namespace {

void shutdown(int32_t failed) {
  using Ending = Session::Ending;
  guard([&] { Session::get().finish(failed != 0 ? Ending::failed : Ending::orderly); });
}

constexpr atoll_backend table = [] {
  atoll_backend backend = table_of<MpiCommunicator>("mpi");
  backend.shutdown = shutdown;
  return backend;
}();

}  // namespace
}  // namespace atoll_mpi

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &atoll_mpi::table;
}
