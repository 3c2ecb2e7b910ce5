// Comm is an open communicator of the host backend.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/plugin.h"
#include "collectives/collectives.hpp"
#include "host/opening.hpp"

namespace atoll_host_backend {

class Comm {
 public:
  // Returns the preference of this backend, by which the library chooses among usable backends.
  static std::int32_t probe(const atoll_group& /*world*/) { return 100; }
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory) {
    return atoll_collectives::capability(kind, dtype, op, memory);
  }
  // Opens a communicator. Collective over the group. Throws atoll_sdk::Error.
  static std::unique_ptr<Comm> open(const atoll_host& host, const atoll_group& group) {
    return std::make_unique<Comm>(host, group);
  }

  Comm(const atoll_host& host, const atoll_group& group);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  // Closes the communicator. An idle communicator waits, for a bounded time, until its sent data
  // has left this host; a failed or aborted communicator closes at once.
  ~Comm();

  // Performs the operations and returns when they are complete. The first failure is final: every
  // later call throws Error(ATOLL_ABORTED) with the text of that failure.
  void submit(std::span<atoll_operation* const> operations);
  void abort() noexcept;                                  // any thread may call abort()
  void register_memory(void* memory, std::size_t bytes);  // collective over the ranks of a host
  // Returns null if other ranks can map the memory, or else a text with the reason and the cost.
  // Collective over the ranks of a host.
  const char* register_caller_memory(void* memory, std::size_t bytes);
  void deregister_memory(void* memory) { group_->windows.remove(memory); }

 private:
  template <class Body>
  void run(const Body& body);

  const pid_t process_ = ::getpid();  // process that opened the communicator
  std::int64_t open_timeout_ns_;
  atoll_collectives::Team team_;
  Transports transports_;
  std::unique_ptr<atoll_collectives::Group> group_;
  std::string failure_;  // text of the first failure; empty while the communicator works
};

}  // namespace atoll_host_backend
