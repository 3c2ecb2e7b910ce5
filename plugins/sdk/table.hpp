// Fills the C table of a backend from a C++ class.
//
// The class `Communicator` represents an open communicator and must provide:
//   static std::int32_t probe(const atoll_group&)
//     returns the backend's preference, or throws Error
//   static std::int32_t capability(kind, dtype, op, memory)
//     returns 1 if the backend supports the combination, otherwise 0
//   static std::unique_ptr<Communicator> open(const atoll_core&, const atoll_group&)
//     opens a communicator
//   void submit(std::span<atoll_operation* const>)
//     performs one or more operations
//   void abort() noexcept
//     may be called by any thread
// The destructor of Communicator closes the communicator. The backend itself sets the optional
// slots of the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "atoll/plugin.h"
#include "sdk/guard.hpp"

namespace atoll_sdk {

// comm_of() and handle_of() convert between an atoll_comm* and the backend's class: the handle is a
// pointer to an object of that class.
template <class Communicator>
Communicator& comm_of(atoll_comm* comm) {
  if (comm == nullptr) throw Error(ATOLL_INVALID_ARGUMENT, "the communicator is NULL");
  return *reinterpret_cast<Communicator*>(comm);
}
template <class Communicator>
atoll_comm* handle_of(std::unique_ptr<Communicator> comm) {
  return reinterpret_cast<atoll_comm*>(comm.release());
}

// Returns a table in which every required slot is set. Its shutdown() does nothing.
template <class Communicator>
constexpr atoll_backend table_of(const char* name) {
  atoll_backend table{};
  table.size = sizeof(atoll_backend);
  table.abi_major = ATOLL_ABI_MAJOR;
  table.abi_minor = ATOLL_ABI_MINOR;
  table.name = name;
  table.probe = [](const atoll_core*, const atoll_group* world) -> std::int32_t {
    std::int32_t preference = 0;
    const auto status = guard([&] {
      if (world == nullptr) throw Error(ATOLL_INVALID_ARGUMENT, "probe: world must not be NULL");
      preference = Communicator::probe(*world);
    });
    return status == ATOLL_OK ? preference : 0;
  };
  table.capability = [](std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) {
    return Communicator::capability(kind, dtype, op, memory);
  };
  table.open = [](const atoll_core* core, const atoll_group* group, atoll_comm** out) {
    return guard([&] {
      if (core == nullptr || group == nullptr || out == nullptr) {
        throw Error(ATOLL_INVALID_ARGUMENT, "open: core, group and out must not be NULL");
      }
      *out = handle_of(Communicator::open(*core, *group));
    });
  };
  table.submit = [](atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
    return guard([&] {
      Communicator& open = comm_of<Communicator>(comm);
      if (n < 0 || (n > 0 && operations == nullptr)) {
        throw Error(ATOLL_INVALID_ARGUMENT, "submit: n is negative, or the operations are NULL");
      }
      if (n > 0) open.submit(std::span(operations, static_cast<std::size_t>(n)));
    });
  };
  table.abort = [](atoll_comm* comm) {
    if (comm != nullptr) comm_of<Communicator>(comm).abort();
  };
  table.close = [](atoll_comm* comm) {
    const std::unique_ptr<Communicator> owned(reinterpret_cast<Communicator*>(comm));
  };
  table.last_error = [](const atoll_comm*) { return last_error(); };
  table.shutdown = [](std::int32_t) {};
  return table;
}

}  // namespace atoll_sdk
