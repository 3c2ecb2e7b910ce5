// Windows manages the registered windows of a communicator. A window consists of memory of each
// rank of a host, which all ranks of the host have mapped.
//
// All ranks of the host register windows in the same order. Each rank passes the file descriptor of
// its memory to the other ranks over Unix sockets and maps the memory of the other ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/exchange.hpp"
#include "collectives/shared_memory/control_block.hpp"
#include "collectives/shared_memory/memory_file.hpp"
#include "collectives/shared_memory/passing.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "core/descriptor.hpp"

namespace atoll_collectives {

class Windows {
 public:
  // A null `transport` means that this rank is alone on its host.
  Windows(const Team& team, const ShmTransport* transport);

  // Registers `memory` as this rank's part of a new window. Collective over the ranks of the host.
  // `file` is the file range that backs the memory; without one, other ranks cannot map it. Throws
  // Error(ATOLL_TIMEOUT), which names absent ranks, Error(ATOLL_MISMATCH), which names a rank that
  // registers another size, or Error(ATOLL_BAD_DATA), which names one whose file is too short.
  void add(void* memory, std::size_t bytes, const std::optional<shared_memory::Range>& file,
           std::int64_t timeout_ns);
  // Returns true if a registered window contains a byte of [memory, memory + bytes).
  bool overlaps(const void* memory, std::size_t bytes) const noexcept;
  // Removes this rank's part of a window. Not collective: the other ranks keep their mappings of
  // this rank's memory until they remove their own parts. Throws Error(ATOLL_NOT_FOUND) if `memory`
  // is not registered.
  void remove(void* memory);

  // Returns the position of [data, data + bytes) in the window that contains it. The result's
  // `window` is -1 if no window does, or if other ranks cannot map the memory.
  WindowOffset find(const void* data, std::size_t bytes) const noexcept;
  // Returns the address at which this process has mapped the position `place` of a local rank's
  // memory. `place.window` must not be -1. Throws Error(ATOLL_INVALID_ARGUMENT) if this rank has
  // removed its own part of the window.
  std::byte* at(int local, const WindowOffset& place) const;

 private:
  struct Window {
    std::byte* own = nullptr;
    std::size_t bytes = 0;
    std::vector<Mapping> parts;  // mapped memory of each local rank; empty for this rank itself
    bool shared = false;         // true if other ranks can map this rank's part of the window
  };
  struct Message;  // message in which a rank announces its part of a window
  struct Part {    // a rank's part of a window, as its message announced it
    std::uint64_t offset;
    std::uint64_t bytes;
    Fd file;
  };

  bool send(int local, const Message& message, int fd) const;
  bool receive_one();
  void exchange(const Message& mine, int fd, std::int64_t timeout_ns);

  const Team& team_;
  const ShmTransport* transport_;
  std::optional<Passing> passing_;  // empty if this rank is alone on its host
  std::vector<Window>
      windows_;  // all windows in order of registration; removed windows stay as empty entries
  // Index in windows_ of the window that begins at each address.
  std::map<std::uintptr_t, std::size_t> by_address_;
  // Parts of windows that other ranks have announced, by window index and local rank.
  std::map<std::pair<std::uint64_t, int>, Part> arrived_;
};

}  // namespace atoll_collectives
