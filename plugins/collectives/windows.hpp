// Windows: registered memory of the ranks of a host, mapped by all of them.
//
// Every rank of the host registers its part of a window at the same place in the order; each passes
// the file of its part to the others over Unix sockets, and maps theirs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/descriptor.hpp"
#include "collectives/exchange.hpp"
#include "collectives/seat.hpp"
#include "collectives/shared_memory.hpp"
#include "collectives/shm_transport.hpp"

namespace atoll_sdk {

class Windows {
 public:
  // `transport` NULL: alone on this host.
  Windows(const Team& team, const ShmTransport* transport);

  // Collective over the ranks of the host. Memory that is not of shared_memory::allocate() is
  // accepted and stays out of the others' reach. Throws Error: ATOLL_TIMEOUT names who did not
  // come, ATOLL_MISMATCH who registers another size.
  void add(void* memory, std::size_t bytes, std::int64_t timeout_ns);
  // Not collective; the others keep their maps of this rank's part until they remove theirs. Throws
  // Error(ATOLL_NOT_FOUND).
  void remove(void* memory);

  // Where [data, data + bytes) is, as the others can find it.
  Place find(const void* data, std::size_t bytes) const noexcept;
  // The same bytes of another rank, here. `place` is in a window. Throws
  // Error(ATOLL_INVALID_ARGUMENT) when this rank has removed its part of it.
  std::byte* at(int local, const Place& place) const;

 private:
  struct Window {
    std::byte* own = nullptr;
    std::size_t bytes = 0;
    std::vector<Mapping> parts;  // by local; the own one stays empty
    bool shared = false;         // the others map the own part
  };
  struct Offer;  // one rank's message about one window
  struct Part {  // what arrived with it
    std::uint64_t offset;
    std::uint64_t bytes;
    Descriptor file;
  };

  void open_socket();
  bool offer(int local, const Offer& message, int fd) const;
  bool receive_one();
  void exchange(const Offer& mine, int fd, std::int64_t timeout_ns);

  const Team& team_;
  const ShmTransport* transport_;
  Descriptor socket_;
  std::vector<Window> windows_;  // by number; removed ones stay, empty
  std::map<std::uintptr_t, std::size_t> by_address_;
  std::map<std::pair<std::uint64_t, int>, Part> arrived_;  // by number and local
};

}  // namespace atoll_sdk
