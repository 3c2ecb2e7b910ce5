// Unix datagram sockets with addresses in the abstract namespace. All ranks of a host can reach
// such an address, because they share a network namespace. No file is left behind.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

#include "core/descriptor.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {

using atoll_v1::atoll::net::Fd;

struct UnixAddress {
  explicit UnixAddress(std::string_view name) {
    socket.sun_family = AF_UNIX;
    const auto length = name.copy(socket.sun_path + 1, sizeof(socket.sun_path) - 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&socket); }

  sockaddr_un socket{};
  socklen_t size = 0;
};

// Opens a non-blocking datagram socket that receives at `address`. Throws Error(ATOLL_IO).
inline Fd open_datagram_socket(const UnixAddress& address) {
  Fd result(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result) throw atoll_sdk::system_error("socket", errno);
  if (::bind(result.get(), address.get(), address.size) != 0) {
    throw atoll_sdk::system_error("bind of a Unix socket", errno);
  }
  return result;
}

}  // namespace atoll_collectives
