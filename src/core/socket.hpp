// Owned file descriptors, and the TCP calls that the store needs. Unless stated otherwise, failures
// throw Error(io) with the address and the message of the operating system.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

using Clock = std::chrono::steady_clock;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// A socket address of the kernel, IPv4 or IPv6.
struct Address {
  std::vector<std::byte> bytes;  // address as the kernel stores it, a sockaddr
};

// Returns all TCP addresses of a host name or numeric address; throws Error(not_found) with the
// name.
std::vector<Address> resolve(std::string_view host, int port);
bool is_loopback(const Address& address) noexcept;
std::string numeric_host(const Address& address);
int port_of(const Address& address) noexcept;

Fd listen_on(const Address& address);
Fd accept_from(int listener);  // nonblocking socket, or an empty Fd if no connection is pending
Fd connect_to(const Address& address, Clock::time_point deadline);  // returns a blocking socket
Address local_address(int socket);
// Waits for one of the `events` of poll(), or for an error; returns false at the deadline.
bool wait_for(int socket, short events, Clock::time_point deadline);

// Transfer all bytes, or throw Error(peer_lost) if the connection ends and Error(timeout) at the
// deadline.
void send_all(int socket, std::string_view data);
void receive_all(int socket, std::span<char> data,
                 Clock::time_point deadline = Clock::time_point::max());

}  // namespace atoll_v1::atoll::net
