// File descriptors with an owner, and the few TCP calls that the store needs. Failures are
// Error(io) with the address and the reason of the operating system.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

using Clock = std::chrono::steady_clock;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// An endpoint as the kernel wants it, IPv4 or IPv6.
struct Address {
  std::vector<std::byte> bytes;  // a sockaddr
  int family = 0;
};

// All stream addresses of a host name or numeric address; Error(not_found) that names it.
std::vector<Address> resolve(std::string_view host, int port);
bool is_loopback(const Address& address) noexcept;
std::string numeric_host(const Address& address);
int port_of(const Address& address) noexcept;

Fd listen_on(const Address& address);
Fd accept_from(int listener);  // nonblocking; an empty Fd when there is nobody
Fd connect_to(const Address& address, Clock::time_point deadline);  // the result blocks
Address local_address(int socket);

// The whole of it or an exception: Error(peer_lost) at the end of the stream, Error(timeout).
void send_all(int socket, std::string_view data);
void receive_all(int socket, std::span<char> data, Clock::time_point deadline);
// False at the end of the stream or when the connection broke; waits without limit.
bool receive_all(int socket, std::span<char> data) noexcept;

}  // namespace atoll_v1::atoll::net
