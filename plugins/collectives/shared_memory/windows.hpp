// Registered windows: memory of each rank of a host that all ranks of the host have mapped.
//
// All ranks of the host register windows in the same order. Each passes the file of its memory to
// the others over Unix sockets and maps theirs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/descriptor.hpp"
#include "collectives/exchange.hpp"
#include "collectives/shared_memory/control_block.hpp"
#include "collectives/shared_memory/memory_file.hpp"
#include "collectives/shared_memory/shm_transport.hpp"

namespace atoll_collectives {

class Windows {
 public:
  // A null `transport` means that this rank is alone on its host.
  Windows(const Team& team, const ShmTransport* transport);

  // Collective over the ranks of the host. Memory that does not come from shared_memory::allocate()
  // is accepted, but other ranks cannot map it. Throws Error: ATOLL_TIMEOUT names absent ranks,
  // ATOLL_MISMATCH a rank that registers another size.
  void add(void* memory, std::size_t bytes, std::int64_t timeout_ns);
  // Not collective: the other ranks keep their mappings of this rank's memory until they remove
  // their own part. Throws Error(ATOLL_NOT_FOUND).
  void remove(void* memory);

  // The window that contains [data, data + bytes).
  WindowOffset find(const void* data, std::size_t bytes) const noexcept;
  // The mapped address of another rank's memory. `place.window` is not -1. Throws
  // Error(ATOLL_INVALID_ARGUMENT) if this rank has removed its part of the window.
  std::byte* at(int local, const WindowOffset& place) const;

 private:
  struct Window {
    std::byte* own = nullptr;
    std::size_t bytes = 0;
    std::vector<Mapping> parts;  // indexed by local rank; empty for this rank
    bool shared = false;         // other ranks have mapped this rank's part
  };
  struct Message;  // one rank's message about one window
  struct Part {    // content of a message that has arrived
    std::uint64_t offset;
    std::uint64_t bytes;
    Descriptor file;
  };

  void open_socket();
  bool send(int local, const Message& message, int fd) const;
  bool receive_one();
  void exchange(const Message& mine, int fd, std::int64_t timeout_ns);

  const Team& team_;
  const ShmTransport* transport_;
  Descriptor socket_;
  std::vector<Window> windows_;  // indexed by number; removed windows stay as empty entries
  std::map<std::uintptr_t, std::size_t> by_address_;
  std::map<std::pair<std::uint64_t, int>, Part> arrived_;  // by window number and local rank
};

}  // namespace atoll_collectives
