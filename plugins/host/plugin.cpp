// Defines the C table of the host backend.
#include <cstdint>
#include <memory>

#include "atoll/plugin.h"
#include "collectives/communicator/table.hpp"
#include "host/opening.hpp"

namespace {

struct HostComm : atoll_collectives::Comm {
  using Comm::Comm;
  // Returns the preference of this backend, by which the library chooses among usable backends.
  static std::int32_t probe(const atoll_group& /*world*/) { return 100; }
  static std::unique_ptr<HostComm> open(const atoll_host& host, const atoll_group& group) {
    return std::make_unique<HostComm>(host, group, atoll_host_backend::open_tcp);
  }
};

constexpr atoll_backend table = atoll_collectives::table_of<HostComm>("host");

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &table;
}
