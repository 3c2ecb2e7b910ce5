// HostCommunicator is an open communicator of a backend that is built on this library, and
// table_of() the C table of such a backend. The ranks of a host share memory; the backend provides
// the transport to the ranks of other hosts.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "atoll/plugin.h"
#include "collectives/collectives.hpp"
#include "collectives/communicator/group_store.hpp"
#include "collectives/communicator/sharing.hpp"
#include "collectives/mailbox.hpp"
#include "collectives/shared_memory/memory_file.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "collectives/transport.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {

class HostCommunicator {
 public:
  // Opens the transport to the ranks of other hosts. `core` and `team` outlive the transport;
  // `group` and `store` do not. In `group`, each rank of a host whose ranks cannot share memory
  // counts as a host.
  using OpenNetwork = std::unique_ptr<Transport> (*)(const atoll_core& core,
                                                     const atoll_group& group, const Team& team,
                                                     const GroupStore& store);

  // Opens a communicator. Collective over the group. Calls `open_network` if the group has several
  // hosts. Throws atoll_sdk::Error; an error with ATOLL_TIMEOUT names the absent ranks.
  HostCommunicator(const atoll_core& core, const atoll_group& group, OpenNetwork open_network);
  HostCommunicator(const HostCommunicator&) = delete;
  HostCommunicator& operator=(const HostCommunicator&) = delete;
  // Closes the communicator. An idle communicator waits, for a bounded time, until its sent data
  // has left this host; a failed or aborted communicator closes at once.
  ~HostCommunicator();

  static constexpr std::int32_t memory_kind = ATOLL_MEMORY_CPU;
  // On CPU memory every known kind, dtype and op is supported.
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory) {
    return memory == memory_kind && is_known(kind, dtype, op) ? 1 : 0;
  }
  // Performs the operations and returns when they are complete. Consecutive sends and
  // receives progress together; collectives run in order. In a group with tags any number of
  // threads may call it, with sends and receives alone. The first failure is final: every
  // later call throws Error(ATOLL_ABORTED) with the text of that failure.
  void submit(std::span<atoll_operation* const> operations);
  void abort() noexcept;  // any thread may call abort()
  int rank() const noexcept { return team_.rank; }
  int size() const noexcept { return team_.size(); }
  void register_memory(void* memory, std::size_t bytes);  // collective over the ranks of a host
  // Returns null if other ranks can map the memory, or else a text with the reason and the cost.
  // Collective over the ranks of a host.
  const char* register_caller_memory(void* memory, std::size_t bytes);
  // Registers memory with the network alone, which needs no other rank.
  void register_own_memory(void* memory, std::size_t bytes);
  void deregister_memory(void* memory);

 private:
  template <class Body>
  void run(const Body& body);

  const pid_t process_ = ::getpid();  // process that opened the communicator
  std::int64_t open_timeout_ns_;
  Team team_;
  std::unique_ptr<ShmTransport> shm_;   // null if this rank is alone on its host
  std::unique_ptr<Transport> network_;  // null if the group has one host
  std::unique_ptr<Group> group_;
  std::set<void*> own_memory_;        // memory of register_own_memory()
  std::unique_ptr<Mailbox> mailbox_;  // performs all operations of a group with tags
  std::string failure_;  // text of the first failure; empty while the communicator works
};

// Fills the C table of a backend whose communicators are of a class derived from HostCommunicator.
// The class must provide probe() and open() as atoll_sdk::table_of() states.
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
  table.register_own_memory = [](atoll_comm* comm, void* memory, std::size_t bytes) {
    return guard([&] { comm_of<Backend>(comm).register_own_memory(memory, bytes); });
  };
  table.deregister_memory = [](atoll_comm* comm, void* memory) {
    return guard([&] { comm_of<Backend>(comm).deregister_memory(memory); });
  };
  table.deregister_caller_memory = table.deregister_memory;
  table.has_levels = 1;
  return table;
}

}  // namespace atoll_collectives
